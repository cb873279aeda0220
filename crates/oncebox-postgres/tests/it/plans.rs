//! Plans: what runs for ever must not slow down with the size of the table.

use oncebox_core::Key;
use oncebox_core::store::statement::section;
use oncebox_core::store::{Claims, Upkeep};
use sqlx::AssertSqlSafe;

use crate::fixture;

/// A million with the judged counts, a tenth of that otherwise.
fn markers() -> i64 {
    if std::env::var_os("ONCEBOX_FULL").is_some() { 1_000_000 } else { 100_000 }
}

#[tokio::test]
async fn a_sweep_walks_the_index_at_a_million_markers() {
    let Some(postgres) = fixture::as_owner("a_sweep_walks_the_index_at_a_million_markers").await else {
        return;
    };
    let pool = postgres.store.pool();
    let fill = format!(
        "insert into oncebox.marker (handler, kind, key, state, received_at, processed_at)
         select 'h', 'k', ('\\x00' || convert_to(n::text, 'UTF8')), 'done', at, at
         from (select n, now() - interval '8 days' + n * interval '1 s' as at from generate_series(1, {}) n) as n;
         insert into oncebox.result (handler, kind, key, body) select handler, kind, key, '' from oncebox.marker;
         analyze oncebox.marker, oncebox.result;",
        markers()
    );
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(pool).await.unwrap();

    let sweep = section(include_str!("../../src/sql/marker.sql"), "sweep").replace("{schema}", "oncebox");
    let before = "(extract(epoch from now() - interval '8 days' + interval '500 s') * 1000)::int8";
    let sweep = sweep.replace("$1::int8", before).replace("$2::int8", "1000::int8");
    let explain = AssertSqlSafe(format!("explain {sweep}"));
    let plan: Vec<String> = sqlx::query_scalar(explain).fetch_all(pool).await.unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Scan using marker_processed"), "{plan}");
    assert!(!plan.contains("Seq Scan"), "{plan}");

    let edge = "select (extract(epoch from processed_at) * 1000)::int8 from oncebox.marker order by processed_at offset 500";
    // Half a second before it: rows are a second apart, and milliseconds are rounded.
    let before_ms: i64 = sqlx::query_scalar::<_, i64>(edge).fetch_one(pool).await.unwrap() - 500;
    let mut swept = 0;
    loop {
        let batch = postgres.store.sweep(before_ms, 100).await.unwrap();
        assert!(batch <= 100);
        swept += batch;
        if batch == 0 {
            break;
        }
    }
    assert_eq!(swept, 500);
    let orphans = "select count(*) from oncebox.result r where not exists
        (select from oncebox.marker m where (m.handler, m.kind, m.key) = (r.handler, r.kind, r.key))";
    let orphans: i64 = sqlx::query_scalar(orphans).fetch_one(pool).await.unwrap();
    assert_eq!(orphans, 0);
}

#[tokio::test]
async fn two_sweeps_at_once_do_not_get_in_each_other_s_way() {
    let Some(postgres) = fixture::as_owner("two_sweeps_at_once_do_not_get_in_each_other_s_way").await else {
        return;
    };
    let store = &postgres.store;
    let keys: Vec<_> = (0..3_000).map(|n| Key::from(n).stored()).collect();
    store.import_processed("h", "k", &keys).await.unwrap();
    let (_, now_ms) = store.live_time().await.unwrap();
    let all = async || {
        let mut swept = 0;
        loop {
            match store.sweep(now_ms + 60_000, 100).await.unwrap() {
                0 => break swept,
                batch => swept += batch,
            }
        }
    };
    let (a, b, c) = tokio::join!(all(), all(), all());
    assert_eq!(a + b + c, 3_000);
}
