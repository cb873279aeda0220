use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order.number")]
struct OrderPaid {
    order: Order,
}

fn main() {}
