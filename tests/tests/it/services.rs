//! Two services with a database each: sales of the first one are published, relayed, and booked by the second one.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use oncebox::PostgresStore;
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Longer than any step takes on a busy machine.
const STUCK: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);
const ACCOUNTS: i64 = 97;
const SENDERS: usize = 2;
const SOLD: &str = "select count(*) from sale";
const BOOKED: &str = "select count(*) from booked";

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
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
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

/// Two services with a database each: the shop sells, the office books.
pub(crate) struct Services {
    shop: Database,
    office: Database,
    senders: Vec<Service>,
    receiver: Service,
    /// What the senders and the receiver are told about each other.
    sender_peer: String,
    receiver_peer: String,
    /// The number of booked sales, when it was last looked at.
    booked: i64,
}

impl Services {
    /// Starts everything, and waits until a sale is booked.
    pub(crate) async fn start(sender_peer: String, receiver_peer: String) -> Self {
        let shop = Database::start(
            "create table account (id bigint primary key, version bigint not null);
             insert into account select n, 0 from generate_series(0, 96) n;
             create table sale (account bigint not null, version bigint not null)",
        )
        .await;
        let office = Database::start(
            "create table booked (seq bigserial primary key, account bigint not null, version bigint not null)",
        )
        .await;
        assert_eq!(shop.number("select count(*) from account").await, ACCOUNTS);
        let receiver = Service::start("receiver", &office, &receiver_peer);
        let senders = (0..SENDERS).map(|_| Service::start("sender", &shop, &sender_peer)).collect();
        let mut services = Self { shop, office, senders, receiver, sender_peer, receiver_peer, booked: 0 };
        services.until_booked("from the beginning").await;
        services
    }

    /// Kills a process or a database, one after the other, and starts it again.
    pub(crate) async fn kill(&mut self, number: usize) {
        match number % 5 {
            0 | 2 => {
                let victim = number / 2 % SENDERS;
                self.senders[victim].kill().await;
                self.senders[victim] = Service::start("sender", &self.shop, &self.sender_peer);
            }
            1 => {
                self.receiver.kill().await;
                self.receiver = Service::start("receiver", &self.office, &self.receiver_peer);
            }
            3 => self.shop.kill().await,
            _ => self.office.kill().await,
        }
    }

    /// Waits until one more sale is booked.
    pub(crate) async fn until_booked(&mut self, since: &str) {
        self.booked = beyond(&self.office, BOOKED, self.booked, since).await;
    }

    /// Waits until at least so many sales are sold and all are booked. Then what is booked is what was sold, once and in order.
    pub(crate) async fn check(mut self, sales: i64) {
        while self.shop.number(SOLD).await < sales {
            self.until_booked("after the last kill").await;
        }
        for sender in &mut self.senders {
            sender.say("quiet").await;
        }
        // A sale may be in progress: quiet is when nothing has been sold between two looks and all is booked.
        let (mut sold, mut booked, mut moved) = (self.shop.number(SOLD).await, self.booked, Instant::now());
        loop {
            tokio::time::sleep(POLL * 10).await;
            let now = (self.shop.number(SOLD).await, self.office.number(BOOKED).await);
            if now == (sold, sold) {
                break;
            }
            if now != (sold, booked) {
                ((sold, booked), moved) = (now, Instant::now());
            }
            assert!(moved.elapsed() < STUCK, "{sold} sold, {booked} booked");
        }
        for mut sender in self.senders {
            sender.say("stop").await;
            assert!(sender.0.wait().await.unwrap().success());
        }
        let sold = self.shop.versions("select account, version from sale order by account, version").await;
        let booked = self.office.versions("select account, version from booked order by account, seq").await;
        assert_eq!(i64::try_from(sold.len()).unwrap(), ACCOUNTS);
        for (account, sold) in &sold {
            assert!(
                booked.get(account) == Some(sold),
                "account {account}: booked is not what was sold, or not in its order"
            );
        }
        for database in [&self.shop, &self.office] {
            assert_eq!(database.number("select count(*) from oncebox.dead").await, 0, "dead letters");
        }
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
