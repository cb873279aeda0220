//! Texts about sources of messages, which the configuration, the command line and the gateway share.

pub(crate) use oncebox_http::delivery::is_left_out;

/// The header that names the source of a stored message.
pub(crate) const SOURCE_HEADER: &str = "Oncebox-Source";

/// The error text for a header that is not stored, without the remedy.
pub(crate) fn not_stored(name: &str) -> String {
    format!("the header {name} is not stored, because it is secret or belongs to the connection")
}

/// The error text of a JSON pointer, on the command line too.
pub(crate) fn invalid_pointer(pointer: &str) -> String {
    format!("invalid JSON pointer {pointer:?}: start it with '/', for example /data/id")
}
