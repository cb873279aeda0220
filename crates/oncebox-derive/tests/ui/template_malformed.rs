use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order:{id")]
struct NeverClosed {
    id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "id}")]
struct NeverOpened {
    id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order:{}")]
struct NoName {
    id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "")]
struct NoText {
    id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "{id}%{id}")]
struct Percent {
    id: u64,
}

fn main() {}
