use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id", kind = "order.settled")]
struct InOneAttribute {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id")]
#[message(key = "cents")]
struct InTwoAttributes {
    order_id: u64,
    cents: i64,
}

fn main() {}
