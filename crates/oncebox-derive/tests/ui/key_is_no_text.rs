use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = order_id)]
struct FieldWithoutQuotes {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = 7)]
struct Number {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key_fn = "Self::reference")]
struct FunctionInQuotes {
    order_id: u64,
}

fn main() {}
