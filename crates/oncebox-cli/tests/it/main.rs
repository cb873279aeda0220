//! The program as its users have it: started, asked, killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod accept;
mod commands;
mod demo;
mod gateway;
mod killed;
mod operate;
mod rabbitmq;
mod receiver;
mod relays;
mod serve;
