use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "price.changed", key = "price")]
struct Field {
    price: f64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "price.changed", key = "{product}:{price}")]
struct InTemplate {
    product: u64,
    price: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Product {
    price: f64,
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "price.changed", key = "product.price")]
struct InPath {
    product: Product,
}

fn main() {}
