//! Two services with a database each: sales of the first one are published, relayed over HTTP, and booked by the second one. All
//! processes and both databases are killed again and again. What is booked in the end is what was sold, once and in order.

use crate::every_store::judged;
use crate::services::Services;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_that_are_relayed_over_http_are_booked_once_and_in_order() {
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner("sales_that_are_relayed_over_http").await.is_none() {
        return;
    }
    // Free for a moment: each receiver binds it again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut services = Services::start(format!("http://127.0.0.1:{port}/"), port.to_string()).await;
    let kills = judged(60);
    for kill in 0..kills {
        services.kill(kill).await;
        services.until_booked(&format!("since kill {kill}")).await;
    }
    // Far fewer in a usual run: with one sale of each account under way, a busy machine books a few dozen in a second.
    services.check(if kills == 60 { 200_000 } else { 4_000 }).await;
}
