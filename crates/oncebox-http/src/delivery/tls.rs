//! TLS for the client, without any set-up by the program.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls_platform_verifier::BuilderVerifierExt;

/// The settings of TLS: the program's own provider of cryptography if it has installed one, otherwise *ring*. Nothing is
/// installed for the whole process here, which is the program's business.
pub(super) fn config() -> Result<ClientConfig, rustls::Error> {
    let provider =
        CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    // The only version of HTTP that this client speaks.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
