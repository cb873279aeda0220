//! What only PostgreSQL's log has: announcements, and a view with JSON in it.

use std::time::Duration;

use oncebox_core::store::{Log, Select};
use oncebox_core::{Envelope, Failure, Inbox};
use oncebox_postgres::PostgresStore;
use sqlx::PgConnection;

use crate::fixture;

const KINDS: [&str; 1] = ["order.paid"];

async fn write_effect(envelope: Envelope, conn: &mut PgConnection) -> Result<(), Failure> {
    if envelope.body() == b"bad" {
        return Err(Failure::permanent("bad body"));
    }
    let name = envelope.key().map(ToString::to_string).unwrap_or_default();
    sqlx::query("insert into effect (name) values ($1)").bind(name).execute(conn).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_accepted_is_announced_to_those_who_listen() {
    let test = "what_is_accepted_is_announced_to_those_who_listen";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let other = PostgresStore::connect(&postgres.database.url()).await.unwrap();
    let listening = tokio::spawn(async move {
        let heard = move || {
            let _ = tell.send(());
        };
        other.listen(heard).await
    });
    let silent = Inbox::builder(postgres.store.clone()).stored().notify(false);
    let silent = silent.on_raw("ledger", KINDS, write_effect).build().await.unwrap();
    let loud = Inbox::builder(postgres.store.clone()).stored().notify(true);
    let loud = loud.on_raw("ledger", KINDS, write_effect).build().await.unwrap();

    // Until it listens nobody can be heard.
    let mut n = 0;
    while told.try_recv().is_err() {
        n += 1;
        let _ = loud.accept(Envelope::new("order.paid", "{}").with_key(n)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Announcements under way are heard before one that is sent behind them.
    let drain = async |told: &mut tokio::sync::mpsc::UnboundedReceiver<()>| {
        tokio::time::sleep(Duration::from_millis(100)).await;
        while told.try_recv().is_ok() {}
    };
    drain(&mut told).await;
    let _ = silent.accept(Envelope::new("order.paid", "{}").with_key("silent")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(told.try_recv().is_err(), "nobody asked for announcements");
    let _ = loud.accept(Envelope::new("order.paid", "{}").with_key("loud")).await.unwrap();
    told.recv().await.unwrap();
    listening.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_view_has_the_shape_of_an_inbox_table() {
    let Some(postgres) = fixture::as_owner("the_view_has_the_shape_of_an_inbox_table").await else { return };
    let inbox = Inbox::builder(postgres.store.clone()).stored().lanes(1);
    let inbox = inbox.on_raw("ledger", KINDS, write_effect).build().await.unwrap();
    for (key, body) in [("json", "{\"cents\": 42}"), ("text", "no json"), ("dies", "bad")] {
        let _ = inbox.accept(Envelope::new("order.paid", body).with_key(key)).await.unwrap();
    }
    let _ = inbox.accept(Envelope::new("other", "{}").with_key([0xff, 1].as_slice())).await.unwrap();
    type Row = (String, String, Option<i32>, bool, bool, Option<String>);
    let rows = async || -> Vec<Row> {
        sqlx::query_as(
            "select id, type, (content ->> 'cents')::int4, received_on_utc <= now(), processed_on_utc is not null, error
             from oncebox.inbox_message order by lane, pos",
        )
        .fetch_all(postgres.store.pool())
        .await
        .unwrap()
    };
    let row = |id: &str, kind: &str, cents, processed, error: Option<&str>| -> Row {
        (id.to_owned(), kind.to_owned(), cents, true, processed, error.map(str::to_owned))
    };
    assert_eq!(rows().await[0], row("json", "order.paid", Some(42), false, None));
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (2, 1));
    assert_eq!(
        rows().await,
        [
            row("json", "order.paid", Some(42), true, None),
            row("text", "order.paid", None, true, None),
            row("dies", "order.paid", None, false, Some("bad body")),
            row("0xff01", "other", None, false, None),
        ]
    );
    assert_eq!(inbox.discard_dead(Select::all(), "ann").await.unwrap(), 1);
    assert_eq!(rows().await[2], row("dies", "order.paid", None, true, None));
}
