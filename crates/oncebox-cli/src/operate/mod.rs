//! The operator's commands, on any Oncebox database.

pub(crate) mod accept;
pub(crate) mod audit;
mod bytes;
mod confirm;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod handlers;
mod json_layout;
mod known;
mod lines;
pub(crate) mod messages;
pub(crate) mod migrate;
pub(crate) mod outbox;
mod place;
pub(crate) mod prune;
pub(crate) mod publish;
pub(crate) mod sources;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod work;
