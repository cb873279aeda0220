//! A long run: three handlers, many messages, duplicates and failures; each effect once, and nothing is updated in place.

use std::time::Duration;

use oncebox::{Attempt, BoxError, Envelope, Inbox, Retry};
use sqlx::{Connection, PgConnection};

use crate::every_store::{Conn, OrderPaid, envelope, judged};
use crate::stored_fixture::{LogFixture, when_all_have_left};

async fn inbox<F: LogFixture>(fixture: &F) -> Inbox<F::Store> {
    let retry = Retry::new().max_attempts(3).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
    let mut builder = Inbox::builder(fixture.another_store().await).stored().retry(retry);
    for name in ["one", "two"] {
        let effects = fixture.clone();
        let handler =
            async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
                effects.effect(conn, &format!("{name} {}", order.order_id)).await?;
                if n == 1 && order.order_id.ends_with("42") { Err("at first".into()) } else { Ok(()) }
            };
        builder = builder.on(name, handler);
    }
    let effects = fixture.clone();
    let set = async move |orders: Vec<OrderPaid>, conn: &mut Conn<F>| -> Result<(), BoxError> {
        for order in orders {
            effects.effect(conn, &format!("set {}", order.order_id)).await?;
        }
        Ok(())
    };
    builder.on("set", set).build().await.unwrap()
}

async fn each_effect_happens_once_per_handler<F: LogFixture>(fixture: F) {
    let messages = judged(100_000);
    let inboxes = [inbox(&fixture).await, inbox(&fixture).await];
    let running =
        inboxes.clone().map(|inbox| tokio::spawn(async move { inbox.run(std::future::pending()).await }));
    let (mut new, mut known) = (0, 0);
    for chunk in (0..messages).collect::<Vec<_>>().chunks(500) {
        // Every tenth comes twice, through the other inbox.
        let ids =
            |step| chunk.iter().step_by(step).map(|n| envelope(&format!("o-{n}"))).collect::<Vec<Envelope>>();
        let (first, second) = tokio::join!(inboxes[0].accept_all(ids(1)), inboxes[1].accept_all(ids(10)));
        for accept in first.into_iter().chain(second) {
            if accept.unwrap().is_new() { new += 1 } else { known += 1 }
        }
    }
    assert_eq!((new, known), (messages, messages / 10));
    let is_over = async || {
        let statuses = inboxes[0].operators().handler_statuses().await.unwrap();
        statuses.iter().all(|status| (status.lag, status.tasks) == (0, 0))
    };
    while !is_over().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (mut done, mut failed) = (0, 0);
    for (inbox, running) in inboxes.iter().zip(running) {
        inbox.close().await;
        let report = running.await.unwrap().unwrap();
        assert_eq!(report.dead, 0);
        done += report.done;
        failed += report.failed;
    }
    let expected = 3 * messages as i64;
    assert_eq!(fixture.totals().await, (expected, expected));
    assert_eq!((done, failed), (3 * messages as u64, 2 * messages as u64 / 100));
    for of in fixture.balance().await {
        assert!(of.is_even(), "{of:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_effect_happens_once_per_handler_on_sqlite() {
    each_effect_happens_once_per_handler(crate::sqlite::in_a_file("three_handlers").await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_effect_happens_once_per_handler_on_postgres_and_nothing_is_updated() {
    let Some(postgres) = crate::postgres::as_owner("three_handlers").await else { return };
    let url = postgres.database.url();
    each_effect_happens_once_per_handler(postgres.clone()).await;
    postgres.store.pool().close().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()";
    sqlx::query(end).execute(&mut conn).await.unwrap();
    when_all_have_left(&mut conn).await;
    let statistics = "select relname::text, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables
        where schemaname = 'oncebox' and relname in ('message', 'progress') order by relname";
    let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(statistics).fetch_all(&mut conn).await.unwrap();
    assert_eq!(rows.len(), 2);
    for (table, inserted, updated, deleted) in rows {
        assert!(inserted > 0, "the statistics of {table} have not arrived");
        assert_eq!((updated, deleted), (0, 0), "{table}");
    }
}
