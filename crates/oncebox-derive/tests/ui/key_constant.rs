use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "{{order_id}}")]
struct Key {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", order_by = "{{order_id}}")]
struct OrderingKey {
    order_id: u64,
}

fn main() {}
