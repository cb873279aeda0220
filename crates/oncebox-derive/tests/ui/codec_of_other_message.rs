use oncebox::Message;

struct Protobuf;

#[derive(Message)]
#[message(kind = "order.paid", key = "order_id", codec = Protobuf)]
struct OrderPaid {
    order_id: u64,
}

fn main() {}
