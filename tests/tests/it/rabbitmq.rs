//! Consuming queues and relaying to exchanges of RabbitMQ, while connections, processes, databases and the broker fail.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use oncebox::rabbitmq::{
    Declare, RabbitMq, RabbitReceipt, RabbitSession, RabbitSettler, RabbitSink, RabbitSource,
};
use oncebox::source::{
    Abilities, Decision, OpenedSession, Received, Room, Session, Settled, Settler, Source,
};
use oncebox::{
    ConsumerWatch, Envelope, Error, Inbox, InboxBuilder, Outbox, Outgoing, PostgresStore, Relay, Sink,
    SqliteStore, Verdict,
};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use oncebox_servers::rabbitmq::{self, RabbitOptions, RabbitServer, test_vhost};
use oncebox_servers::skip::skip_or_fail;
use sqlx::{PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::every_store::judged;

/// Longer than any step takes on a busy machine.
const STUCK: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);
const QUEUE: &str = "orders";

/// Waits for a condition.
async fn until(what: &str, mut is_reached: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !is_reached().await {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(STUCK, reached).await.unwrap_or_else(|_| panic!("never reached: {what}"));
}

/// A client that knows nothing of Oncebox.
struct Client {
    _connection: Connection,
    channel: Channel,
}

impl Client {
    async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self { _connection: connection, channel }
    }

    /// The number of messages in a queue that no consumer has.
    async fn count(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions::durable().passive();
        self.channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .unwrap()
            .message_count()
    }

    /// The body of the next message, which stays in its queue.
    async fn look(&self, queue: &str) -> Option<Vec<u8>> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: false }).await.unwrap();
        got.map(|got| got.delivery.data)
    }
}

/// A store in a file, with a table of effects.
async fn sqlite(folder: &TempDir) -> (SqliteStore, String) {
    let file = folder.path().join("effects.db").display().to_string();
    let store = SqliteStore::connect(&file).await.unwrap();
    store.migrate().await.unwrap();
    let table = "create table if not exists effect (body text not null)";
    sqlx::query(table).execute(store.pool()).await.unwrap();
    (store, file)
}

/// How often each body took effect.
async fn effects(store: &SqliteStore) -> BTreeMap<String, i64> {
    let count = "select body, count(*) from effect group by body";
    let rows: Vec<(String, i64)> = sqlx::query_as(count).fetch_all(store.pool()).await.unwrap();
    rows.into_iter().collect()
}

async fn write(body: &[u8], db: &mut SqliteConnection) -> anyhow::Result<()> {
    let insert = sqlx::query("insert into effect (body) values (?)");
    insert.bind(std::str::from_utf8(body)?).execute(db).await?;
    Ok(())
}

fn inbox(store: &SqliteStore) -> InboxBuilder<SqliteStore> {
    Inbox::builder(store.clone())
}

/// A consumer that runs until it is stopped.
struct Running {
    watch: ConsumerWatch,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<oncebox::ConsumeReport, Error>>,
}

impl Running {
    fn start<S: oncebox::InboxStore, C: Source>(consumer: oncebox::Consumer<S, C>) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let watch = consumer.watch();
        let running = consumer.run(async move { drop(stopped.wait_for(|stop| *stop).await) });
        Self { watch, stop, task: tokio::spawn(running) }
    }

    async fn stop(self) -> oncebox::ConsumeReport {
        self.stop.send_replace(true);
        self.task.await.unwrap().unwrap()
    }
}

/// Publishes a message for each body, and waits for their confirms.
async fn publish(rabbit: &RabbitMq, bodies: impl IntoIterator<Item = String>) {
    let sink = rabbit.exchange("").routing_key(QUEUE).unwrap();
    let wave: Vec<Outgoing> = bodies.into_iter().map(|body| Outgoing::new("order", body)).collect();
    let verdicts = sink.publish(&wave).await;
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Confirmed)), "{verdicts:?}");
}

fn numbers(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| number.to_string())
}

fn once_each(count: usize) -> BTreeMap<String, i64> {
    numbers(count).map(|number| (number, 1)).collect()
}

async fn private_server(test: &str) -> Option<RabbitServer> {
    if rabbitmq::find().unwrap().is_none() {
        skip_or_fail(test, "RabbitMQ's server programs are not installed");
        return None;
    }
    Some(RabbitServer::start(RabbitOptions::default()).await.unwrap())
}

/// Passes connections on to the broker, until they are cut.
#[derive(Clone)]
struct Wire {
    port: u16,
    cuts: Arc<watch::Sender<u64>>,
}

impl Wire {
    async fn start(broker: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire =
            Self { port: listener.local_addr().unwrap().port(), cuts: Arc::new(watch::Sender::new(0)) };
        let cuts = wire.cuts.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut cut = cuts.subscribe();
                cut.borrow_and_update();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", broker)).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        wire
    }

    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

/// A source whose connection dies before some settlements are sent, and whose settlements wait while it is on hold.
struct Dying {
    inner: RabbitSource,
    wire: Wire,
    left: Arc<AtomicUsize>,
    hold: watch::Receiver<bool>,
}

struct DyingSession {
    inner: RabbitSession,
    settler: DyingSettler,
}

#[derive(Clone)]
struct DyingSettler {
    inner: RabbitSettler,
    wire: Wire,
    left: Arc<AtomicUsize>,
    hold: watch::Receiver<bool>,
}

impl Source for Dying {
    type Session = DyingSession;

    const ABILITIES: Abilities = RabbitSource::ABILITIES;

    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn open(&mut self, prefetch: Room) -> Result<OpenedSession<DyingSession>, Error> {
        let OpenedSession { session, warnings } = self.inner.open(prefetch).await?;
        let settler = DyingSettler {
            inner: session.settler(),
            wire: self.wire.clone(),
            left: self.left.clone(),
            hold: self.hold.clone(),
        };
        Ok(OpenedSession { session: DyingSession { inner: session, settler }, warnings })
    }
}

impl Session for DyingSession {
    type Receipt = RabbitReceipt;
    type Settler = DyingSettler;

    fn settler(&self) -> DyingSettler {
        self.settler.clone()
    }

    async fn next(&mut self, room: Room) -> Result<Vec<Received<RabbitReceipt>>, Error> {
        self.inner.next(room).await
    }

    async fn close(self) {
        self.inner.close().await;
    }
}

impl Settler for DyingSettler {
    type Receipt = RabbitReceipt;

    async fn settle(&self, decisions: Vec<Decision<RabbitReceipt>>) -> Vec<Settled> {
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            // The handlers have committed.
            self.wire.cut();
        }
        // An error means that the test has ended.
        let _ = self.hold.clone().wait_for(|is_held| !is_held).await;
        self.inner.settle(decisions).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_die_between_commit_and_acknowledgement_cost_nothing() {
    let Some(vhost) = test_vhost("connections_that_die_between_commit_and_acknowledgement").await else {
        return;
    };
    let (cuts, messages) = (judged(200), judged(4_000));
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = sqlite(&folder).await;
    let book = async |order: Envelope, db: &mut SqliteConnection| write(order.body(), db).await;
    let inbox = inbox(&store).on_raw("books", ["order"], book).build().await.unwrap();
    let url = vhost.url();
    let port = |url: &str| url.rsplit_once(':').unwrap().1.split('/').next().unwrap().parse().unwrap();
    let wire = Wire::start(port(&url)).await;
    let through = url.replace(&format!(":{}/", port(&url)), &format!(":{}/", wire.port));
    let left = Arc::new(AtomicUsize::new(cuts));
    let source = Dying {
        inner: RabbitMq::new(through).unwrap().queue(QUEUE).declare(Declare::Create),
        wire,
        left: left.clone(),
        hold: watch::Sender::new(false).subscribe(),
    };
    let consumer = Running::start(inbox.consume(source));
    until("the queue exists", async || consumer.watch.status().sessions > 0).await;
    let rabbit = RabbitMq::new(&url).unwrap();
    // In parts, so that fresh messages arrive between those that arrive again.
    for number in numbers(messages) {
        publish(&rabbit, [number]).await;
    }
    let mut extra = messages;
    while left.load(Ordering::SeqCst) > 0 {
        publish(&rabbit, [extra.to_string()]).await;
        extra += 1;
    }
    let client = Client::connect(&url).await;
    let expected = once_each(extra);
    until("all took effect", async || effects(&store).await.len() == expected.len()).await;
    until("all are settled", async || {
        consumer.watch.status().in_flight == 0 && client.count(QUEUE).await == 0
    })
    .await;
    assert_eq!(effects(&store).await, expected);
    let status = consumer.watch.status();
    // An acknowledgement of an earlier connection would be an error of the later one, and end it.
    assert!(status.sessions <= cuts as u64 + 1, "{} sessions after {cuts} cuts", status.sessions);
    assert_eq!((status.rejected, status.retried), (0, 0));
    consumer.stop().await;
    assert_eq!((client.count(QUEUE).await, client.count("orders.dead").await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_aborts_its_process_is_the_only_one_that_is_rejected() {
    const MESSAGES: usize = 500;
    let Some(vhost) = test_vhost("a_message_that_aborts_its_process_is_the_only_one").await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (store, file) = sqlite(&folder).await;
    let (rabbit, url) = (RabbitMq::new(vhost.url()).unwrap(), vhost.url());
    let mut source = rabbit.queue(QUEUE).declare(Declare::Create);
    source.open(Room { messages: 1, bytes: 1 }).await.unwrap().session.close().await;
    let bodies = numbers(MESSAGES).map(|number| if number == "250" { "abort".to_owned() } else { number });
    publish(&rabbit, bodies).await;
    let client = Client::connect(&url).await;
    let mut expected = once_each(MESSAGES);
    expected.remove("250");
    let mut crashes = 0;
    let rejected = async || client.count("orders.dead").await > 0;
    while !rejected().await || effects(&store).await.len() < expected.len() {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(["aborter", &file, &url]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let is_done = async || rejected().await && effects(&store).await.len() == expected.len();
        tokio::select! {
            _ = child.wait() => crashes += 1,
            () = until("all are handled, or a crash", is_done) => {}
        }
        assert!(crashes < 50, "{crashes} crashes");
    }
    assert_eq!(crashes, 5, "the default of `max_crashes`");
    assert_eq!(effects(&store).await, expected);
    assert_eq!(client.look("orders.dead").await.as_deref(), Some(&b"abort"[..]));
    assert_eq!(client.count("orders.dead").await, 0, "no other one");
    until("all are settled", async || client.count(QUEUE).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_wait_while_the_database_is_down() {
    const PREFETCH: usize = 50;
    const MESSAGES: usize = 500;
    let test = "deliveries_wait_while_the_database_is_down";
    let (Some(_), Some(vhost)) = (crate::postgres::as_owner(test).await, test_vhost(test).await) else {
        return;
    };
    let mut database = PostgresServer::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (body text not null)").execute(store.pool()).await.unwrap();
    let book = async |order: Envelope, db: &mut PgConnection| {
        let insert = sqlx::query("insert into effect (body) values ($1)");
        let inserted = insert.bind(std::str::from_utf8(order.body()).unwrap_or_default()).execute(db).await;
        inserted.map(drop).map_err(anyhow::Error::from)
    };
    let inbox = Inbox::builder(store.clone()).on_raw("books", ["order"], book).build().await.unwrap();
    let rabbit = RabbitMq::new(vhost.url()).unwrap();
    let source = rabbit.queue(QUEUE).declare(Declare::Create);
    let consumer = Running::start(inbox.consume(source).prefetch(PREFETCH));
    until("the queue exists", async || consumer.watch.status().sessions > 0).await;
    let client = Client::connect(&vhost.url()).await;
    // Messages are handled when the database dies.
    publish(&rabbit, numbers(MESSAGES / 2)).await;
    until("some are handled", async || consumer.watch.status().acknowledged > 10).await;
    database.kill().unwrap();
    publish(&rabbit, numbers(MESSAGES).skip(MESSAGES / 2)).await;
    until("deliveries wait", async || consumer.watch.status().store_error.is_some()).await;
    // The broker has all the others, and nothing moves.
    let waiting = async || {
        let status = consumer.watch.status();
        assert!(status.in_flight <= PREFETCH, "{status:?}");
        let done = usize::try_from(status.acknowledged).unwrap() + status.in_flight;
        done + usize::try_from(client.count(QUEUE).await).unwrap() <= MESSAGES && status.in_flight > 0
    };
    for _ in 0..50 {
        assert!(waiting().await, "{:?}", consumer.watch.status());
        tokio::time::sleep(POLL).await;
    }
    let status = consumer.watch.status();
    assert_eq!((status.rejected, status.retried, status.sessions), (0, 0, 1), "{status:?}");
    database.restart().await.unwrap();
    until("all are acknowledged", async || consumer.watch.status().acknowledged == MESSAGES as u64).await;
    let count = "select count(*), count(distinct body) from effect";
    let effects: (i64, i64) = sqlx::query_as(count).fetch_one(store.pool()).await.unwrap();
    assert_eq!(effects, (MESSAGES as i64, MESSAGES as i64));
    let report = consumer.stop().await;
    assert_eq!((report.rejected, report.retried, report.received), (0, 0, MESSAGES as u64));
}

/// A sink that counts its calls.
struct Counting(RabbitSink, Arc<AtomicU64>);

impl Sink for Counting {
    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.publish(wave).await
    }
}

/// Publishes messages in one transaction, before the outbox runs.
async fn publish_by(outbox: &Outbox<SqliteStore>, bodies: impl Iterator<Item = String>) {
    let mut tx = outbox.store().pool().begin().await.unwrap();
    for body in bodies {
        outbox.publish_envelope(&mut *tx, Envelope::new("order", body)).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// What the relay has given up, or tries again by itself.
async fn set_apart(outbox: &Outbox<SqliteStore>) -> (u64, u64) {
    let statuses = outbox.operators().handler_statuses().await.unwrap();
    let sum =
        |(tasks, dead), status: &oncebox::store::HandlerStatus| (tasks + status.tasks, dead + status.dead);
    statuses.iter().fold((0, 0), sum)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_out_of_memory_takes_acknowledgements_and_the_relay_recovers() {
    const MESSAGES: usize = 100;
    let Some(server) = private_server("a_broker_out_of_memory_takes_acknowledgements").await else { return };
    let rabbit = RabbitMq::new(server.url()).unwrap().timeout(Duration::from_secs(5));
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = sqlite(&folder).await;
    let inbox = inbox(&store)
        .on_raw("books", ["order"], async |order: Envelope, db: &mut SqliteConnection| {
            write(order.body(), db).await
        })
        .build()
        .await
        .unwrap();
    let hold = watch::Sender::new(true);
    let source = Dying {
        inner: rabbit.queue(QUEUE).declare(Declare::Create),
        wire: Wire::start(server.port()).await,
        left: Arc::default(),
        hold: hold.subscribe(),
    };
    let consumer = Running::start(inbox.consume(source));
    until("the queue exists", async || consumer.watch.status().sessions > 0).await;
    publish(&rabbit, numbers(MESSAGES)).await;
    until("all are in flight", async || consumer.watch.status().in_flight == MESSAGES).await;

    server.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await.unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let sink = Counting(rabbit.exchange("").routing_key(QUEUE).unwrap(), calls.clone());
    // Of its own, because a database has one log.
    let other_folder = tempfile::tempdir().unwrap();
    let (other, _) = sqlite(&other_folder).await;
    let outbox = Outbox::builder(other).relay(Relay::new("orders", sink)).build().await.unwrap();
    publish_by(&outbox, numbers(2 * MESSAGES).skip(MESSAGES)).await;
    let (stop, mut stopped) = watch::channel(false);
    let relaying = outbox.clone();
    let relaying =
        tokio::spawn(
            async move { relaying.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await },
        );
    until("the relay has tried again and again", async || calls.load(Ordering::SeqCst) >= 5).await;
    assert_eq!(consumer.watch.status().acknowledged, 0);
    hold.send_replace(false);
    until("all are acknowledged", async || consumer.watch.status().acknowledged == MESSAGES as u64).await;
    let unsettled = async || {
        let list = ["--no-table-headers", "list_queues", "messages"];
        server
            .ctl(&list)
            .await
            .unwrap()
            .lines()
            .filter_map(|line| line.trim().parse::<u64>().ok())
            .sum::<u64>()
    };
    until("the broker has the acknowledgements", async || unsettled().await == 0).await;
    assert_eq!(set_apart(&outbox).await, (0, 0), "tasks and dead letters");
    assert_eq!(consumer.watch.status().sessions, 1);

    server.ctl(&["set_vm_memory_high_watermark", "0.4"]).await.unwrap();
    let expected = once_each(2 * MESSAGES);
    until("all took effect", async || effects(&store).await.len() == expected.len()).await;
    assert_eq!(effects(&store).await, expected);
    assert_eq!(set_apart(&outbox).await, (0, 0), "tasks and dead letters");
    stop.send_replace(true);
    relaying.await.unwrap().unwrap();
    consumer.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_message_is_reported_once_at_its_limit_and_runs_again_after_a_redrive() {
    const ATTEMPTS: u32 = 3;
    let Some(vhost) = test_vhost("a_poison_message_is_reported_once_at_its_limit").await else { return };
    let client = Arc::new(Client::connect(&vhost.url()).await);
    let exchange = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let channel = &client.channel;
    channel
        .exchange_declare("faults".into(), ExchangeKind::Fanout, exchange, FieldTable::default())
        .await
        .unwrap();
    channel
        .queue_declare("reports".into(), QueueDeclareOptions::durable(), FieldTable::default())
        .await
        .unwrap();
    let (queue, options) = ("reports".into(), QueueBindOptions::default());
    channel.queue_bind(queue, "faults".into(), "".into(), options, FieldTable::default()).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let (store, _) = sqlite(&folder).await;
    let (runs, is_mended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, mended, looking) = (runs.clone(), is_mended.clone(), client.clone());
    let book = async move |order: Envelope, db: &mut SqliteConnection| -> anyhow::Result<()> {
        counted.fetch_add(1, Ordering::SeqCst);
        if order.body() == b"poison" && !mended.load(Ordering::SeqCst) {
            // Never before the limit.
            assert_eq!(looking.count("reports").await, 0, "a report before the last attempt has ended");
            anyhow::bail!("no such customer");
        }
        write(order.body(), db).await
    };
    let inbox = inbox(&store).on_raw("books", ["order"], book).build().await.unwrap();
    let rabbit = RabbitMq::new(vhost.url()).unwrap();
    let source =
        rabbit.queue(QUEUE).declare(Declare::Create).max_retries(ATTEMPTS - 1).fault_exchange("faults");
    let consumer = Running::start(inbox.consume(source));
    until("the queue exists", async || consumer.watch.status().sessions > 0).await;
    publish(&rabbit, ["poison".to_owned(), "1".to_owned()]).await;
    until("it is rejected", async || client.count("orders.dead").await == 1).await;
    until("it is reported", async || client.count("reports").await == 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), u64::from(ATTEMPTS) + 1, "and once for the other message");

    is_mended.store(true, Ordering::SeqCst);
    assert_eq!(rabbit.redrive(QUEUE, 10).await.unwrap(), 1);
    let expected = BTreeMap::from([("1".to_owned(), 1), ("poison".to_owned(), 1)]);
    until("it took effect", async || effects(&store).await == expected).await;
    until("nothing is in flight", async || consumer.watch.status().in_flight == 0).await;
    assert_eq!((client.count("orders.dead").await, client.count("reports").await), (0, 1));
    let report = serde_json::from_slice::<serde_json::Value>(&client.look("reports").await.unwrap()).unwrap();
    assert_eq!(report["attempts"], ATTEMPTS);
    consumer.stop().await;
}
