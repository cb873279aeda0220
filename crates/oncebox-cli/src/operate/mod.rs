//! What operators ask and do, on any database.

pub(crate) mod accept;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod handlers;
pub(crate) mod messages;
pub(crate) mod migrate;
pub(crate) mod prune;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod work;
