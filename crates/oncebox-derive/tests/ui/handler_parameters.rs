use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "paid", key = "id")]
struct Paid {
    id: String,
}

struct Connection;

#[oncebox::debug_handler]
async fn message_is_no_message(_: String, _: &mut Connection) {}

#[oncebox::debug_handler]
async fn extractor_is_none(_: Paid, _: String, _: &mut Connection) {}

#[oncebox::debug_handler]
async fn connection_first(_: &mut Connection, _: Paid) {}

#[oncebox::debug_handler]
async fn returns_a_number(_: Paid) -> u32 {
    7
}

#[oncebox::debug_handler]
async fn nothing() {}

#[oncebox::debug_handler(trace)]
async fn unknown_option(_: Paid) {}

fn main() {}
