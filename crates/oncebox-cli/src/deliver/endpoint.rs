//! Delivery to an HTTP endpoint.

use anyhow::Result;
use oncebox::{Envelope, Failure};
use oncebox_http::delivery::{Endpoint, PostError};

use crate::config::EndpointConfig;
use crate::deliver::delivery_info::DeliveryInfo;

/// The endpoint of a configuration.
pub(super) fn endpoint(config: &EndpointConfig) -> Result<Endpoint> {
    let mut endpoint = Endpoint::new(config.url.as_str())?;
    for (name, value) in &config.headers {
        endpoint = endpoint.header(name.as_str(), value)?;
    }
    Ok(if config.allow_private { endpoint.allow_private() } else { endpoint })
}

/// Posts the message of a handler, and returns the outcome by the response.
pub(super) async fn deliver(
    endpoint: &Endpoint,
    envelope: &Envelope,
    info: &DeliveryInfo,
) -> Result<(), Failure> {
    let attempt = info.attempt.to_string();
    let own = [
        ("idempotency-key", Some(&*info.effect_id)),
        ("oncebox-effect-id", Some(&*info.effect_id)),
        ("oncebox-attempt", Some(&*attempt)),
        ("oncebox-replay", info.is_replay.then_some("true")),
        ("oncebox-handler", Some(&*info.handler)),
        ("oncebox-kind", Some(&*info.kind)),
        ("oncebox-key", info.key.as_deref()),
        ("oncebox-source", info.source.as_deref()),
        ("traceparent", Some(&*info.traceparent)),
    ];
    endpoint.post(envelope.headers(), &own, envelope.body()).await.map_err(failure)
}

/// The outcome by a response: dead, or a retry, and when.
fn failure(error: PostError) -> Failure {
    match (error.status, error.retry_after) {
        (Some(status), _) if is_final(status) => Failure::permanent(error),
        (_, Some(wait)) => Failure::after(wait, error),
        (_, None) => error.into(),
    }
}

/// Whether another attempt would get the same response.
fn is_final(status: u16) -> bool {
    // These four ask for another attempt.
    (400..500).contains(&status) && !matches!(status, 408 | 409 | 425 | 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_means_dead_or_retry() {
        for code in [400, 401, 403, 404, 405, 410, 413, 415, 422, 451] {
            assert!(is_final(code), "{code}");
        }
        for code in [301, 302, 307, 408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(!is_final(code), "{code}");
        }
    }

    /// The remedy comes first, because the end may be cut.
    #[tokio::test]
    async fn a_name_of_this_machine_is_named_in_the_error() {
        let endpoint = Endpoint::new("http://localhost:1/").unwrap();
        let error = endpoint.post(&oncebox::Headers::new(), &[], b"").await.unwrap_err();
        assert!(error.to_string().starts_with("localhost is on this machine"), "{error}");
    }
}
