//! The operator's commands, on databases that the library has filled.

mod database;
mod dead;
mod doctor;
mod handlers;
mod messages;
mod migrate;
mod opening;
mod outbox;
mod publish;
mod retention;
mod status;
