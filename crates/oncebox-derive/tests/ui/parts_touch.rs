use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "{tenant}{order_id}")]
struct OrderPaid {
    tenant: u64,
    order_id: u64,
}

fn main() {}
