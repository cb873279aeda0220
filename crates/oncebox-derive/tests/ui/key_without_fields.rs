use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.changed", key = "id")]
enum OrderChanged {
    Paid { id: u64 },
    Shipped { id: u64 },
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "ping", key = "id")]
struct Ping;

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "pong", key = content, order_by = "{id}")]
struct Pong {}

#[derive(Message)]
#[message(kind = "raw")]
union Raw {
    id: u64,
}

fn main() {}
