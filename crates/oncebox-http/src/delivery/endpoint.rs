//! An endpoint, and a client that reuses its connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{BoxError, Error, Headers};
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, ClientBuilder, Url, redirect};

use super::address::{AddressResolver, PrivateAddress, is_private_host};
use super::headers::{forwarded, header_problem};
use super::response::PostError;
use super::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP endpoint that messages are posted to. It follows no redirects, uses no proxy, and refuses private addresses.
#[derive(Clone)]
pub struct Endpoint {
    client: Client,
    url: Url,
    /// Whether the host is a private address as it is written.
    is_private: bool,
    headers: HeaderMap,
    resolver: AddressResolver,
}

impl Endpoint {
    /// An endpoint at an `http` or `https` URL.
    pub fn new(url: &str) -> Result<Self, Error> {
        let parsed = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            // Without the value, which may have a secret.
            .ok_or_else(|| {
                Error::configuration("invalid URL: write http://HOST/PATH or https://HOST/PATH")
            })?;
        let resolver = AddressResolver::default();
        let client = build(client_builder()?.dns_resolver(Arc::new(resolver.clone())))?;
        let is_private = is_private_host(parsed.host_str().unwrap_or_default());
        Ok(Self { client, url: parsed, is_private, headers: HeaderMap::new(), resolver })
    }

    /// Adds a header to each request. It replaces a stored header of this name.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        if let Some(problem) = header_problem(name) {
            return Err(Error::configuration(problem));
        }
        let (Ok(header), Ok(mut value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_ref()))
        else {
            return Err(Error::configuration(format!(
                "invalid value of the header {name}: leave out control characters"
            )));
        };
        // The client leaves sensitive values out of its debug output.
        value.set_sensitive(true);
        self.headers.append(header, value);
        Ok(self)
    }

    /// Allows an address on this machine or in a private network.
    #[must_use]
    pub fn allow_private(self) -> Self {
        self.resolver.allow_private();
        self
    }

    /// Posts a message with its stored headers and with those of this delivery. A sender cannot set the latter, even if they have
    /// no value here.
    pub async fn post(
        &self,
        stored: &Headers,
        own: &[(&str, Option<&str>)],
        body: &[u8],
    ) -> Result<(), PostError> {
        // A name is checked when it is resolved; an address in the URL is not resolved.
        if self.is_private && !self.resolver.allows_private() {
            let host = self.url.host_str().unwrap_or_default();
            return Err(PostError::unsent(PrivateAddress::new(host).to_string()));
        }
        let request = self.client.post(self.url.clone()).headers(self.headers(stored, own, body));
        match request.body(body.to_vec()).send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(PostError::of_response(response).await),
            Err(error) => Err(PostError::without_response(error)),
        }
    }

    fn headers(&self, stored: &Headers, own: &[(&str, Option<&str>)], body: &[u8]) -> HeaderMap {
        let mut headers = forwarded(stored);
        for (name, value) in own {
            let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
            // A sender must not be able to set these.
            headers.remove(&name);
            // A value with characters that headers cannot have is left out.
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(name, value);
            }
        }
        // Configured headers win over those of the sender.
        headers.extend(self.headers.clone());
        if body.is_empty() {
            // The client leaves it out for empty bodies, but many services require it.
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        headers
    }
}

/// A client for an address that the user names, which may be private.
pub fn client() -> Result<Client, Error> {
    build(client_builder()?)
}

fn client_builder() -> Result<ClientBuilder, Error> {
    let tls = tls::config().map_err(no_client)?;
    Ok(Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("oncebox/", env!("CARGO_PKG_VERSION")))
        // A redirect could lead to a private address, and many turn a POST into a GET.
        .redirect(redirect::Policy::none())
        // A proxy would resolve names itself, private addresses included.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT))
}

fn build(builder: ClientBuilder) -> Result<Client, Error> {
    builder.build().map_err(no_client)
}

fn no_client(error: impl Into<BoxError>) -> Error {
    Error::configuration("cannot create an HTTP client").with_source(error)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the path, which may have a secret.
        let origin = self.url.origin().ascii_serialization();
        f.debug_struct("Endpoint").field("origin", &origin).finish_non_exhaustive()
    }
}
