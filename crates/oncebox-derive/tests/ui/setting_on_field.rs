use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid")]
struct OrderPaid {
    #[message(key)]
    order_id: u64,
}

fn main() {}
