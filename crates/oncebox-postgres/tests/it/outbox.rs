//! The outbox on PostgreSQL: transactions that overlap, and other languages.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use oncebox_core::store::Survey;
use oncebox_core::{BoxError, Codec, Envelope, Inbox, Key, Message, Mode, Outbox, Publish};
use oncebox_postgres::PostgresStore;
use oncebox_servers::skip::skip_or_fail;
use oncebox_testing::Fixture;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::sync::oneshot;
use tokio_postgres::NoTls;

use crate::fixture::{self, Postgres};

/// The limit of a wait for something that happens within milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

async fn connect(postgres: &Postgres) -> PgConnection {
    PgConnection::connect(&postgres.database.url()).await.unwrap()
}

/// The bodies in the log, by lane and position.
async fn bodies(store: &PostgresStore) -> Vec<String> {
    let mut bodies = Vec::new();
    for lane in 0..8 {
        for message in store.messages(lane, 0, 100_000).await.unwrap() {
            bodies.push(String::from_utf8(message.message.body).unwrap());
        }
    }
    bodies
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("it happens within a minute");
}

/// A mover that runs remembers the transactions that were open when it looked.
#[tokio::test]
async fn messages_of_a_transaction_that_commits_later_are_moved() {
    let test = "messages_of_a_transaction_that_commits_later_are_moved";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let mover = outbox.clone();
    let running = tokio::spawn(async move { mover.run(async { drop(stopped.await) }).await });
    let (mut early, mut late) = (connect(&postgres).await, connect(&postgres).await);
    for round in 0..3 {
        let mut first = early.begin().await.unwrap();
        outbox.publish_envelope(&mut first, Envelope::new("k", format!("{round} early"))).await.unwrap();
        let mut second = late.begin().await.unwrap();
        outbox.publish_envelope(&mut second, Envelope::new("k", format!("{round} late"))).await.unwrap();
        second.commit().await.unwrap();
        let late = format!("{round} late");
        until(async || bodies(&postgres.store).await.contains(&late)).await;
        // Its window has passed the first transaction by now.
        until(async || outbox.status().await.unwrap().waiting == 0).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        first.commit().await.unwrap();
        let early = format!("{round} early");
        until(async || bodies(&postgres.store).await.contains(&early)).await;
    }
    drop(stop);
    running.await.unwrap().unwrap();
}

/// An old transaction that writes elsewhere holds back nothing.
#[tokio::test]
async fn an_unrelated_open_transaction_delays_no_message() {
    let Some(postgres) = fixture::as_owner("an_unrelated_open_transaction_delays_no_message").await else {
        return;
    };
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let (mut unrelated, mut publisher) = (connect(&postgres).await, connect(&postgres).await);
    let mut open = unrelated.begin_with("begin isolation level repeatable read").await.unwrap();
    open.execute("insert into effect (name) values ('open')").await.unwrap();
    for n in 0..20 {
        let mut tx = publisher.begin().await.unwrap();
        outbox.publish_envelope(&mut tx, Envelope::new("k", format!("{n}"))).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(outbox.flush().await.unwrap(), 1);
    }
    open.rollback().await.unwrap();
}

/// Writers with hot rows: some get the number of their transaction early and then wait, some roll back. They lock the row of their
/// customer before they publish, so the messages of a customer are in the order of its numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_many_writers_are_complete_and_in_order() {
    let Some(postgres) = fixture::as_owner("messages_of_many_writers_are_complete_and_in_order").await else {
        return;
    };
    const CUSTOMERS: i32 = 5;
    const ROUNDS: u32 = 25;
    let tables = "create table customer (id int primary key, number int not null);
        insert into customer select n, 0 from generate_series(0, 4) n; create table noise (n int)";
    postgres.store.pool().execute(tables).await.unwrap();
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let mover = outbox.clone();
    let running = tokio::spawn(async move { mover.run(async { drop(stopped.await) }).await });
    let writers = (0..16_u32).map(|writer| {
        let (postgres, outbox) = (postgres.clone(), outbox.clone());
        tokio::spawn(async move {
            let mut conn = connect(&postgres).await;
            let mut committed = Vec::new();
            for round in 0..ROUNDS {
                let customer = i32::try_from((writer + round) % 5).unwrap();
                let mut tx = conn.begin().await.unwrap();
                if (writer + round) % 3 == 0 {
                    // Its number is older than those of transactions that go first below.
                    tx.execute("insert into noise values (1)").await.unwrap();
                    tokio::time::sleep(Duration::from_millis(u64::from(writer % 4))).await;
                }
                let next = "update customer set number = number + 1 where id = $1 returning number";
                let number: i32 = sqlx::query_scalar(next).bind(customer).fetch_one(&mut *tx).await.unwrap();
                let envelope = Envelope::new("k", format!("{customer} {number:05}"))
                    .with_order_by(format!("customer-{customer}"));
                outbox.publish_envelope(&mut tx, envelope).await.unwrap();
                if round % 7 == 6 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    committed.push(format!("{customer} {number:05}"));
                }
            }
            committed
        })
    });
    let mut committed = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        committed.extend(writer.await.unwrap());
    }
    until(async || outbox.status().await.unwrap().waiting == 0).await;
    drop(stop);
    running.await.unwrap().unwrap();
    let found = bodies(&postgres.store).await;
    let mut by_customer: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for body in &found {
        let (customer, number) = body.split_once(' ').unwrap();
        by_customer.entry(customer).or_default().push(number);
    }
    assert_eq!(by_customer.len(), usize::try_from(CUSTOMERS).unwrap());
    assert!(by_customer.values().all(|numbers| numbers.is_sorted()), "{by_customer:?}");
    let (mut found, mut expected) = (found.clone(), committed);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// The lane of an ordering key is the library's.
#[tokio::test]
async fn lanes_in_sql_are_those_of_the_library() {
    let Some(postgres) = fixture::as_owner("lanes_in_sql_are_those_of_the_library").await else { return };
    for (key, lanes, expected) in
        [("", 8, 4), ("a", 8, 2), ("customer-1", 8, 7), ("customer-2", 8, 0), ("a", 1, 0)]
    {
        let lane =
            sqlx::query_scalar("select oncebox.lane_of(convert_to($1, 'UTF8'), $2)").bind(key).bind(lanes);
        let lane: i32 = lane.fetch_one(postgres.store.pool()).await.unwrap();
        assert_eq!(lane, expected, "{key:?} of {lanes}");
    }
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let inbox = Inbox::builder(postgres.store.clone()).stored().build().await.unwrap();
    let mut conn = connect(&postgres).await;
    for n in 0..40 {
        let envelope = |kind| Envelope::new(kind, "x").with_key(n).with_order_by(format!("customer-{n}"));
        outbox.publish_envelope(&mut conn, envelope("published")).await.unwrap();
        outbox.flush().await.unwrap();
        let accepted = inbox.accept(envelope("accepted")).await.unwrap().place().unwrap();
        let published = postgres.store.find_message("published", &n.into()).await.unwrap().unwrap();
        assert_eq!(published.lane, accepted.lane, "customer-{n}");
    }
}

/// A role that may only publish does so from another driver, in its own transaction.
#[tokio::test]
async fn another_driver_publishes_with_the_right_to_insert_only() {
    let test = "another_driver_publishes_with_the_right_to_insert_only";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let role = format!("pub_{}", postgres.database.url().rsplit('/').next().unwrap());
    let grants = format!(
        "create role \"{role}\" login; grant usage on schema oncebox to \"{role}\"; grant insert on oncebox.outbox to \"{role}\""
    );
    postgres.store.pool().execute(sqlx::raw_sql(AssertSqlSafe(grants))).await.unwrap();
    let (mut client, connection) =
        tokio_postgres::connect(&postgres.database.url_as(&role), NoTls).await.unwrap();
    tokio::spawn(connection);
    let publish =
        "select oncebox.publish('order.paid', $1::text::jsonb, $2, 'customer-1', '{\"x-one\": \"1\"}')::text";
    let tx = client.transaction().await.unwrap();
    tx.query_one(publish, &[&"{}", &"rolled back"]).await.unwrap();
    tx.rollback().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let id: String = tx.query_one(publish, &[&"{\"cents\": 5}", &"o-1"]).await.unwrap().get(0);
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "{id}");
    assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
    let second: String = tx.query_one(publish, &[&"{}", &None::<&str>]).await.unwrap().get(0);
    tx.commit().await.unwrap();
    client.query_one("select count(*) from oncebox.outbox", &[]).await.unwrap_err();

    assert_eq!(outbox.flush().await.unwrap(), 2);
    let place = postgres.store.find_message("order.paid", &"o-1".into()).await.unwrap().unwrap();
    let found = postgres.store.messages(place.lane, place.pos - 1, 2).await.unwrap();
    let message = &found[0].message;
    assert_eq!(message.body, b"{\"cents\": 5}");
    assert_eq!(message.headers.get("x-one"), Some("1"));
    assert_eq!(message.order_by, Some("customer-1".into()));
    assert_eq!(found[1].message.key, Some(second.into()), "without a key, the id is the key");
}

const SCRIPT: &str = r#"
import sys, psycopg
from psycopg.types.json import Jsonb
url, = sys.argv[1:]
publish = "select oncebox.publish(%s, %s, key => %s, order_by => %s, headers => %s)"
with psycopg.connect(url) as db:
    with db.transaction():
        db.execute("insert into effect (name) values ('python')")
        headers = '{"x-one": "1"}'
        row = db.execute(publish, ("order.paid", Jsonb({"cents": 5}), "o-1", "customer-1", headers)).fetchone()
        print(row[0])
    with db.transaction():
        db.execute(publish, ("order.paid", b"\x00\xff", None, None, None))
    try:
        with db.transaction():
            db.execute(publish, ("order.paid", Jsonb({}), "rolled back", None, None))
            raise RuntimeError
    except RuntimeError:
        pass
    for kind, key in [("", "k"), (None, "k"), ("@accept", "k"), ("k", "")]:
        try:
            with db.transaction():
                db.execute(publish, (kind, Jsonb({}), key, None, None))
        except psycopg.errors.InvalidParameterValue:
            continue
        sys.exit("it was not refused: %r" % ((kind, key),))
"#;

/// Python's own driver, in its own transactions.
#[tokio::test]
async fn python_publishes_in_its_own_transaction() {
    let test = "python_publishes_in_its_own_transaction";
    let python = std::env::var_os("ONCEBOX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", "import psycopg"]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        return skip_or_fail(test, "Python or its package psycopg is not installed");
    }
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let run = Command::new(&python).args(["-c", SCRIPT]).arg(postgres.database.url()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(outbox.flush().await.unwrap(), 2);
    assert_eq!(postgres.effects("python").await, 1);
    let place = postgres.store.find_message("order.paid", &"o-1".into()).await.unwrap().unwrap();
    let found = postgres.store.messages(place.lane, place.pos - 1, 1).await.unwrap();
    let message = &found[0].message;
    assert_eq!(message.body, b"{\"cents\": 5}");
    assert_eq!((message.headers.get("x-one"), &message.order_by), (Some("1"), &Some("customer-1".into())));
    let id: String =
        sqlx::query_scalar("select message_id::text from oncebox.message where lane = $1 and pos = $2")
            .bind(i32::from(place.lane))
            .bind(place.pos)
            .fetch_one(postgres.store.pool())
            .await
            .unwrap();
    assert_eq!(String::from_utf8(run.stdout).unwrap().trim(), id);
    let bytes: i64 = sqlx::query_scalar("select count(*) from oncebox.message where body = '\\x00ff'")
        .fetch_one(postgres.store.pool())
        .await
        .unwrap();
    assert_eq!(bytes, 1);
}

#[tokio::test]
async fn the_function_refuses_a_message_that_the_library_refuses() {
    let test = "the_function_refuses_a_message_that_the_library_refuses";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let long = "k".repeat(65_537);
    for (kind, key, order_by) in [
        (Some(""), Some("k"), None),
        (None, Some("k"), None),
        (Some("@accept"), Some("k"), None),
        (Some("a\nb"), Some("k"), None),
        (Some("k"), Some(""), None),
        (Some("k"), Some(&*long), None),
        (Some("k"), None, Some(&*long)),
    ] {
        let publish = sqlx::query("select oncebox.publish($1, 'body'::bytea, $2, $3)")
            .bind(kind)
            .bind(key)
            .bind(order_by);
        let error = publish.fetch_one(postgres.store.pool()).await.map(|row| row.len()).unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "22023", "{kind:?}: {error}");
    }
}

/// One row that the log refuses would stop all others, so the table refuses it first.
#[tokio::test]
async fn the_outbox_refuses_what_the_log_would_refuse() {
    let Some(postgres) = fixture::as_owner("the_outbox_refuses_what_the_log_would_refuse").await else {
        return;
    };
    let outbox = Outbox::builder(postgres.store.clone()).build().await.unwrap();
    let insert = "insert into oncebox.outbox (message_id, kind, body";
    let id = "values (gen_random_uuid()";
    for statement in [
        "select oncebox.publish('k', ''::bytea, due_at => 'infinity')".to_owned(),
        "select oncebox.publish('k', ''::bytea, headers => '[]')".to_owned(),
        format!("{insert}) {id}, '', '')"),
        format!("{insert}) {id}, repeat('k', 201), '')"),
        format!("{insert}) {id}, '@accept', '')"),
        format!("{insert}, key) {id}, 'k', '', '')"),
        format!("{insert}, order_by) {id}, 'k', '', convert_to(repeat('k', 65537), 'UTF8'))"),
        format!("{insert}, headers) {id}, 'k', '', 'no json')"),
        format!("{insert}, headers) {id}, 'k', '', '{{}}')"),
        format!("{insert}, occurred_at) {id}, 'k', '', '-infinity')"),
        format!("{insert}, due_at) {id}, 'k', '', '10000-01-01')"),
        format!("{insert}, captured_at) {id}, 'k', '', 'infinity')"),
    ] {
        let refused = postgres.store.pool().execute(AssertSqlSafe(statement.clone())).await;
        refused.expect_err(&statement);
    }
    let accepted = format!("{insert}, headers) {id}, repeat('k', 200), '', '[[\"a\", 1], 2]')");
    postgres.store.pool().execute(AssertSqlSafe(accepted)).await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 1);
}

/// Its message would be published without its effect, also behind a pooler, where sessions may write on their own.
#[tokio::test]
async fn a_handler_that_ends_its_transaction_publishes_nothing() {
    let test = "a_handler_that_ends_its_transaction_publishes_nothing";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    for store in [postgres.store.clone(), postgres.store.clone().behind_pooler()] {
        let outbox = Outbox::builder(store.clone()).build().await.unwrap();
        for statement in ["ROLLBACK", "COMMIT", "ROLLBACK; BEGIN", "select 1/0"] {
            let handler = async move |note: Note, db: &mut PgConnection| {
                // Ignored on purpose: this handler swallows every error.
                let _ = db.execute("insert into effect (name) values ('x')").await;
                let _ = db.execute(statement).await;
                Publish::new(&note)
            };
            let builder = Inbox::builder(store.clone()).mode(Mode::inline()).outbox(&outbox);
            let inbox = builder.on("h", handler).build().await.unwrap();
            let report =
                inbox.process(Envelope::of(&Note { id: statement.to_owned() }).unwrap()).await.unwrap();
            assert!(
                report.outcomes().all(|(_, outcome)| outcome.name() != "done"),
                "{statement}: {report:?}"
            );
            assert_eq!(outbox.status().await.unwrap().waiting, 0, "{statement}");
            assert_eq!(postgres.effects("x").await, 0, "{statement}");
        }
    }
}

struct Note {
    id: String,
}

/// The body is the id.
struct Text;

impl Codec<Note> for Text {
    fn encode(note: &Note) -> Result<Vec<u8>, BoxError> {
        Ok(note.id.clone().into_bytes())
    }

    fn decode(body: &[u8]) -> Result<Note, BoxError> {
        Ok(Note { id: String::from_utf8(body.to_vec())? })
    }
}

impl Message for Note {
    const KIND: &'static str = "note";
    type Codec = Text;

    fn key(&self) -> Option<Key> {
        Some(Key::from(&*self.id))
    }
}
