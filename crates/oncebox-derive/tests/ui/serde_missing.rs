use oncebox::Message;

#[derive(Message)]
#[message(kind = "order.paid", key = "order_id")]
struct OrderPaid {
    order_id: u64,
}

fn main() {}
