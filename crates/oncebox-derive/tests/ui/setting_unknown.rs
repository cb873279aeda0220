use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", id = "order_id")]
struct OrderPaid {
    order_id: u64,
}

fn main() {}
