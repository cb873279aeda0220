use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order")]
struct Field {
    order_id: u64,
    cents: i64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "{order_id}:{tenant.id}")]
struct InTemplate {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "0", order_by = "2")]
struct Number(u64, u64);

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "content")]
struct QuotedContent {
    order_id: u64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order:order_id")]
struct BracesForgotten {
    order_id: u64,
}

fn main() {}
