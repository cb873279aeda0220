//! Plans of the log: statements that were prepared when the tables were empty stay cheap when they are not.

use oncebox::{BoxError, Inbox, PostgresStore};
use oncebox_testing::Fixture;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::every_store::{OrderPaid, envelope, judged};
use crate::stored_fixture::when_all_have_left;

async fn a_bit_of_everything(inbox: &Inbox<PostgresStore>, round: usize) {
    for n in 0..20 {
        let id = format!("o-{round}-{n}");
        assert!(inbox.accept(envelope(&id)).await.unwrap().is_new());
        assert!(!inbox.accept(envelope(&id)).await.unwrap().is_new());
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 20);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    let place = inbox.operators().find_message("order.paid", format!("o-{round}-7")).await.unwrap().unwrap();
    assert!(inbox.operators().message(place).await.unwrap().is_some());
    assert_eq!(inbox.operators().handler_statuses().await.unwrap()[0].lag, 0);
    assert!(inbox.operators().pending("h", 10).await.unwrap().is_empty());
    inbox.health().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_made_on_empty_tables_stay_cheap_on_full_ones() {
    let Some(postgres) = crate::postgres::as_owner("plans_made_on_empty_tables").await else { return };
    let url = postgres.database.url();
    postgres.store.pool().close().await;
    // As few connections as can be, so that what was prepared at first is what runs at last.
    let pool = PgPoolOptions::new().max_connections(4).connect(&url).await.unwrap();
    let effects = postgres.clone();
    let handler = async move |order: OrderPaid, conn: &mut PgConnection| -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await
    };
    let inbox = Inbox::builder(PostgresStore::new(pool.clone()))
        .stored()
        .workers(1)
        .on("h", handler)
        .build()
        .await
        .unwrap();
    for round in 0..10 {
        a_bit_of_everything(&inbox, round).await;
    }

    let rows = judged(1_000_000);
    let mut conn = PgConnection::connect(&url).await.unwrap();
    // Behind what is there, in all lanes, and passed by the handler. The planner's statistics do not know of them.
    let fill = format!(
        "alter table oncebox.message set (autovacuum_enabled = false);
         alter table oncebox.marker set (autovacuum_enabled = false);
         with head as materialized (
             select l.lane, coalesce((select max(m.pos) from oncebox.message m where m.lane = l.lane), 0) as pos
             from oncebox.lane l where l.handler = 0
         ), filled as (
             insert into oncebox.message (lane, pos, kind, key, body, received_at)
             select h.lane, h.pos + n, 'order.paid', '\\x00'::bytea || convert_to('fill-' || h.lane || '-' || n, 'UTF8'),
                 '{{}}', now()
             from head h cross join generate_series(1, {rows} / 8) n
             returning lane, pos, kind, key
         ), marked as (
             insert into oncebox.marker (handler, kind, key, state, received_at, processed_at, lane, pos)
             select '@accept', kind, key, 'accepted', now(), now(), lane, pos from filled
         )
         insert into oncebox.progress (handler, lane, epoch, pos)
         select h.id, f.lane, 0, max(f.pos) from filled f cross join oncebox.handler h group by h.id, f.lane"
    );
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(&mut conn).await.unwrap();
    // What was done so far is reported when a backend is idle for a while; its size distinguishes it.
    sqlx::query("select pg_stat_force_next_flush()").execute(&pool).await.unwrap();
    sqlx::query("select 1").execute(&pool).await.unwrap();
    sqlx::query("select pg_stat_force_next_flush()").execute(&mut conn).await.unwrap();
    sqlx::query("select pg_stat_reset()").execute(&mut conn).await.unwrap();

    for round in 10..15 {
        a_bit_of_everything(&inbox, round).await;
    }
    inbox.close().await;
    drop(inbox);
    pool.close().await;
    when_all_have_left(&mut conn).await;
    let statistics = "select relname::text, seq_scan, idx_scan, idx_tup_fetch from pg_stat_user_tables
        where schemaname = 'oncebox' and relname in ('message', 'marker', 'progress') order by relname";
    let tables: Vec<(String, i64, i64, i64)> = sqlx::query_as(statistics).fetch_all(&mut conn).await.unwrap();
    assert_eq!(tables.len(), 3);
    for (table, seq_scans, index_scans, fetched) in &tables {
        assert!(*index_scans > 0, "the statistics of {table} have not arrived");
        assert_eq!(*seq_scans, 0, "{table} was read from end to end");
        assert!(*fetched < 20_000, "{fetched} rows of {table} for 100 messages");
    }
    // An index that is read from end to end is no better.
    let statistics = "select indexrelname::text, idx_tup_read from pg_stat_user_indexes
        where schemaname = 'oncebox' and relname in ('message', 'marker', 'progress')";
    let indexes: Vec<(String, i64)> = sqlx::query_as(statistics).fetch_all(&mut conn).await.unwrap();
    for (index, read) in indexes {
        assert!(read < 20_000, "{read} entries of {index} for 100 messages");
    }
}
