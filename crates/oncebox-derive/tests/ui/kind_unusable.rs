use oncebox::Message;
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "")]
struct Empty;

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "@accept")]
struct Reserved;

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order\tpaid")]
struct ControlCharacter;

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789-0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789")]
struct TooLong;

fn main() {}
