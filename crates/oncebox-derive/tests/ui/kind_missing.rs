use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(key = "order_id")]
struct OrderPaid {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
struct NoAttribute;

#[derive(Message, Serialize, Deserialize)]
#[message]
struct BareAttribute;

fn main() {}
