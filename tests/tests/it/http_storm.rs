//! Two services with a database each: sales of the first one are published, relayed over HTTP, and booked by the second one. All
//! processes and both databases are killed again and again. What is booked in the end is what was sold, once and in order.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use oncebox::PostgresStore;
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::every_store::judged;

/// Longer than any step takes on a busy machine.
const STUCK: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);
const ACCOUNTS: i64 = 97;
const SENDERS: usize = 2;

/// A database server of its own, which can be killed.
struct Database {
    server: PostgresServer,
    store: PostgresStore,
}

impl Database {
    async fn start(tables: &'static str) -> Self {
        let server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
        let store = PostgresStore::connect(&server.url()).await.unwrap();
        store.migrate().await.unwrap();
        sqlx::raw_sql(tables).execute(store.pool()).await.unwrap();
        Self { server, store }
    }

    async fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.restart().await.unwrap();
    }

    /// The result of a query. Asks again while the server is away.
    async fn number(&self, query: &'static str) -> i64 {
        let started = Instant::now();
        loop {
            match sqlx::query_scalar(query).fetch_one(self.store.pool()).await {
                Ok(number) => return number,
                Err(error) => assert!(started.elapsed() < STUCK, "{error}"),
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Versions of each account, in the order of the rows.
    async fn versions(&self, query: &'static str) -> BTreeMap<i64, Vec<i64>> {
        let rows: Vec<(i64, i64)> = sqlx::query_as(query).fetch_all(self.store.pool()).await.unwrap();
        let mut versions = BTreeMap::<i64, Vec<i64>>::new();
        for (account, version) in rows {
            versions.entry(account).or_default().push(version);
        }
        versions
    }
}

/// A service process.
struct Service(Child);

impl Service {
    fn start(role: &str, database: &Database, peer: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_http_service"));
        command.args([role, &database.server.url(), peer]).stdin(Stdio::piped()).kill_on_drop(true);
        Self(command.spawn().unwrap())
    }

    async fn kill(&mut self) {
        self.0.kill().await.unwrap();
    }

    async fn say(&mut self, line: &str) {
        self.0.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
}

/// Waits until the number grows beyond this.
async fn beyond(database: &Database, query: &'static str, before: i64, since: &str) -> i64 {
    let started = Instant::now();
    loop {
        let now = database.number(query).await;
        if now > before {
            return now;
        }
        assert!(started.elapsed() < STUCK, "nothing happens {since}: {before} rows of {query:?}");
        tokio::time::sleep(POLL).await;
    }
}

const SOLD: &str = "select count(*) from sale";
const BOOKED: &str = "select count(*) from booked";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_that_are_relayed_over_http_are_booked_once_and_in_order() {
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner("sales_that_are_relayed_over_http").await.is_none() {
        return;
    }
    let mut shop = Database::start(
        "create table account (id bigint primary key, version bigint not null);
         insert into account select n, 0 from generate_series(0, 96) n;
         create table sale (account bigint not null, version bigint not null)",
    )
    .await;
    let mut office = Database::start(
        "create table booked (seq bigserial primary key, account bigint not null, version bigint not null)",
    )
    .await;
    assert_eq!(shop.number("select count(*) from account").await, ACCOUNTS);
    // Free for a moment: each receiver binds it again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port, url) = (port.to_string(), format!("http://127.0.0.1:{port}/"));
    let mut receiver = Service::start("receiver", &office, &port);
    let mut senders: Vec<Service> = (0..SENDERS).map(|_| Service::start("sender", &shop, &url)).collect();

    let kills = judged(60);
    // Far fewer in a usual run: with one sale of each account under way, a busy machine books a few dozen in a second.
    let sales = if kills == 60 { 200_000 } else { 4_000 };
    let mut booked = beyond(&office, BOOKED, 0, "from the beginning").await;
    for kill in 0..kills {
        match kill % 5 {
            0 | 2 => {
                let victim = kill / 2 % SENDERS;
                senders[victim].kill().await;
                senders[victim] = Service::start("sender", &shop, &url);
            }
            1 => {
                receiver.kill().await;
                receiver = Service::start("receiver", &office, &port);
            }
            3 => shop.kill().await,
            _ => office.kill().await,
        }
        booked = beyond(&office, BOOKED, booked, &format!("since kill {kill}")).await;
    }
    while shop.number(SOLD).await < sales {
        booked = beyond(&office, BOOKED, booked, "after the last kill").await;
    }

    for sender in &mut senders {
        sender.say("quiet").await;
    }
    // A sale may be in progress: quiet is when nothing has been sold between two looks and all is booked.
    let (mut sold, mut moved) = (shop.number(SOLD).await, Instant::now());
    loop {
        tokio::time::sleep(POLL * 10).await;
        let now = (shop.number(SOLD).await, office.number(BOOKED).await);
        if now == (sold, sold) {
            break;
        }
        if now != (sold, booked) {
            ((sold, booked), moved) = (now, Instant::now());
        }
        assert!(moved.elapsed() < STUCK, "{sold} sold, {booked} booked");
    }
    for mut sender in senders {
        sender.say("stop").await;
        assert!(sender.0.wait().await.unwrap().success());
    }
    let sold = shop.versions("select account, version from sale order by account, version").await;
    let booked = office.versions("select account, version from booked order by account, seq").await;
    assert_eq!(i64::try_from(sold.len()).unwrap(), ACCOUNTS);
    for (account, sold) in &sold {
        assert!(
            booked.get(account) == Some(sold),
            "account {account}: booked is not what was sold, or not in its order"
        );
    }
    assert_eq!(shop.number("select count(*) from oncebox.dead").await, 0, "dead letters");
}
