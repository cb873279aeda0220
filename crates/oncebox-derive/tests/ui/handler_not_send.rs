use std::rc::Rc;

use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "paid", key = "id")]
struct Paid {
    id: String,
}

#[oncebox::debug_handler]
async fn holds_an_rc(paid: Paid) {
    let shared = Rc::new(paid.id);
    std::future::ready(()).await;
    drop(shared);
}

fn main() {}
