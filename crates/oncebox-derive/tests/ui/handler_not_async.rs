#[oncebox::debug_handler]
fn handle(_: String) {}

fn main() {}
