//! Stored handlers that want the same rows in opposite order: they take turns, and no deadlock costs an attempt.

use oncebox::{Inbox, Retry};
use sqlx::PgConnection;
use std::time::Duration;

use crate::every_store::{OrderPaid, envelope, judged};

/// No failure is forgiven.
const ONCE: Retry = Retry::new().max_attempts(1).first_delay(Duration::ZERO).max_delay(Duration::ZERO);

async fn update(db: &mut PgConnection, rows: [i64; 2]) -> Result<(), sqlx::Error> {
    for row in rows {
        sqlx::query("update account set runs = runs + 1 where id = $1").bind(row).execute(&mut *db).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_lock_in_opposite_order_spend_no_attempts() {
    let test = "handlers_that_lock_in_opposite_order_spend_no_attempts";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let create = "create table account (id bigint primary key, runs bigint not null default 0);
        insert into account (id) values (1), (2)";
    sqlx::raw_sql(create).execute(postgres.store.pool()).await.unwrap();
    let forth = async |_: OrderPaid, db: &mut PgConnection| update(db, [1, 2]).await;
    let back = async |_: OrderPaid, db: &mut PgConnection| update(db, [2, 1]).await;
    let builder = Inbox::builder(postgres.store.clone()).stored().lanes(4).workers(8).retry(ONCE);
    let inbox = builder.on("forth", forth).on("back", back).build().await.unwrap();
    let messages = judged(4_000);
    for accept in inbox.accept_all((0..messages).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    let both = 2 * messages as u64;
    assert_eq!((report.done, report.failed, report.dead), (both, 0, 0));
    let runs: Vec<i64> = sqlx::query_scalar("select runs from account order by id")
        .fetch_all(postgres.store.pool())
        .await
        .unwrap();
    assert_eq!(runs, [both as i64; 2]);
}
