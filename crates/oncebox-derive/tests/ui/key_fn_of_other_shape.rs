use oncebox::{Key, Message};
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key_fn = reference)]
struct OrderPaid {
    order_id: u64,
}

fn reference(order: &OrderPaid) -> Key {
    Key::from(order.order_id)
}

fn main() {}
