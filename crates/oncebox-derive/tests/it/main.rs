//! Tests of the code that `#[derive(Message)]` generates, and of its errors.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too")]

mod codec;
mod compile_fail;
mod content;
mod debug_handler;
mod field_key;
mod function_key;
mod generated;
mod order_by;
mod template_key;
