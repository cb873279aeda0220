//! What PostgreSQL in particular could get wrong.

use std::time::Duration;

use oncebox_core::{BoxError, Envelope, Inbox, Outcome};
use sqlx::{Executor, PgConnection};

use crate::fixture;

fn envelope(key: &str) -> Envelope {
    Envelope::new("k", "{}").with_key(key)
}

#[tokio::test]
async fn a_time_out_ends_the_statement_on_the_server() {
    let Some(postgres) = fixture::as_owner("a_time_out_ends_the_statement_on_the_server").await else {
        return;
    };
    let sleeping = || async {
        let count =
            "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and state = 'active'
            and pid <> pg_backend_pid() and datname = current_database()";
        sqlx::query_scalar::<_, i64>(count).fetch_one(postgres.store.pool()).await.unwrap()
    };
    // In one statement from the start, and in one that begins when most of the time is gone.
    for before in ["select 1", "select pg_sleep(0.4)"] {
        let inbox = Inbox::builder(postgres.store.clone())
            .handler_timeout(Duration::from_millis(600))
            .on_raw("slow", ["k"], async move |_: Envelope, db: &mut PgConnection| -> Result<(), BoxError> {
                sqlx::query("insert into effect (name) values ('slow')").execute(&mut *db).await?;
                db.execute(before).await?;
                db.execute("select pg_sleep(600)").await?;
                Ok(())
            })
            .build()
            .await
            .unwrap();
        let report = inbox.process(envelope("slow")).await.unwrap();
        assert!(matches!(report.outcome("slow"), Some(Outcome::Retry { .. })), "{report:?}");
        while sleeping().await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(inbox.markers("slow").await.unwrap().is_empty());
    }
    let effects: i64 =
        sqlx::query_scalar("select count(*) from effect").fetch_one(postgres.store.pool()).await.unwrap();
    assert_eq!(effects, 0);
}

#[tokio::test]
async fn a_handler_s_limits_do_not_outlive_its_transaction() {
    let Some(postgres) = fixture::as_owner("a_handler_s_limits_do_not_outlive_its_transaction").await else {
        return;
    };
    let settings =
        "select current_setting('lock_timeout') || ' ' || current_setting('statement_timeout') || ' ' ||
        current_setting('idle_in_transaction_session_timeout')";
    let inbox = Inbox::builder(postgres.store.clone())
        .lock_timeout(Duration::from_millis(123_456))
        .handler_timeout(Duration::from_millis(567_891))
        .on_raw("h", ["k"], async move |_: Envelope, db: &mut PgConnection| -> Result<(), BoxError> {
            let inside: String = sqlx::query_scalar(settings).fetch_one(db).await?;
            // The claim's own limit is gone, the handler's are there.
            if inside != "0 567891ms 572891ms" {
                return Err(inside.into());
            }
            Ok(())
        })
        .build()
        .await
        .unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    for _ in 0..20 {
        let outside: String = sqlx::query_scalar(settings).fetch_one(postgres.store.pool()).await.unwrap();
        assert_eq!(outside, "0 0 0");
    }
}

#[tokio::test]
async fn a_backend_that_is_terminated_in_the_body_is_not_the_handler_s_fault() {
    let test = "a_backend_that_is_terminated_in_the_body_is_not_the_handler_s_fault";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let killer = postgres.store.pool().clone();
    let first = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let inbox = Inbox::builder(postgres.store.clone())
        .on_raw("h", ["k"], async move |_: Envelope, db: &mut PgConnection| -> Result<(), BoxError> {
            let backend: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *db).await?;
            if first.swap(false, std::sync::atomic::Ordering::SeqCst) {
                sqlx::query("select pg_terminate_backend($1)").bind(backend).execute(&killer).await?;
            }
            sqlx::query("insert into effect (name) values ('a')").execute(db).await?;
            Ok(())
        })
        .build()
        .await
        .unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    let effects: i64 =
        sqlx::query_scalar("select count(*) from effect").fetch_one(postgres.store.pool()).await.unwrap();
    assert_eq!(effects, 1);
}

#[tokio::test]
async fn a_deferred_constraint_that_fails_at_commit_is_the_handler_s_failure() {
    let test = "a_deferred_constraint_that_fails_at_commit_is_the_handler_s_failure";
    let Some(postgres) = fixture::as_owner(test).await else { return };
    let pool = postgres.store.pool();
    let table = "create table parent (id int primary key);
        create table child (parent int references parent deferrable initially deferred)";
    sqlx::raw_sql(table).execute(pool).await.unwrap();
    let inbox = Inbox::builder(postgres.store.clone())
        .on_raw("h", ["k"], async |_: Envelope, db: &mut PgConnection| -> Result<(), sqlx::Error> {
            sqlx::query("insert into child values (7)").execute(db).await?;
            Ok(())
        })
        .build()
        .await
        .unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Retry { .. })), "{report:?}");
    assert!(inbox.markers("a").await.unwrap().is_empty());
    sqlx::query("insert into parent values (7)").execute(pool).await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
}
