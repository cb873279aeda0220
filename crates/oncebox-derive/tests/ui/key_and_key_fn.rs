use oncebox::{Key, Message};
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id", key_fn = OrderPaid::reference)]
struct OrderPaid {
    order_id: u64,
}

impl OrderPaid {
    fn reference(&self) -> Option<Key> {
        Some(Key::from(self.order_id))
    }
}

fn main() {}
