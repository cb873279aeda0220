//! A handler's unit test: copies at the same time, a crash before the commit, a crash after it.
//!
//! ```console
//! $ cargo test -p oncebox-examples --test ledger
//! ```

use oncebox::SqliteStore;
use oncebox_examples::{OrderPaid, create_ledger, post_to_ledger};
use oncebox_testing::Harness;

/// The handler in an inbox on a database of its own.
async fn harness() -> anyhow::Result<(Harness<SqliteStore>, SqliteStore)> {
    let store = SqliteStore::connect("sqlite::memory:").await?;
    store.migrate().await?;
    create_ledger(store.pool()).await?;
    let harness = Harness::new(store.clone(), |inbox| inbox.on("ledger", post_to_ledger)).await?;
    Ok((harness, store))
}

fn order(order_id: &str) -> OrderPaid {
    OrderPaid { order_id: order_id.into(), cents: 4200 }
}

async fn ledger(store: &SqliteStore) -> anyhow::Result<Vec<(String, i64)>> {
    let rows = sqlx::query_as("select order_id, cents from ledger order by order_id");
    Ok(rows.fetch_all(store.pool()).await?)
}

#[tokio::test]
async fn copies_post_once() -> anyhow::Result<()> {
    let (harness, store) = harness().await?;
    let delivered = harness.deliver(&order("o-1")).copies(3).await?;
    assert_eq!(delivered.done("ledger"), 1);
    assert_eq!(delivered.duplicates("ledger"), 2);
    assert_eq!(ledger(&store).await?, [("o-1".to_owned(), 4200)]);
    Ok(())
}

#[tokio::test]
async fn a_crash_before_the_commit_leaves_nothing_behind() -> anyhow::Result<()> {
    let (harness, store) = harness().await?;
    let delivered = harness.deliver(&order("o-1")).copies(3).crash_before_commit(1).await?;
    assert_eq!(delivered.crashes, 1);
    assert_eq!(delivered.done("ledger"), 1);
    assert_eq!(delivered.duplicates("ledger"), 2);
    assert_eq!(ledger(&store).await?, [("o-1".to_owned(), 4200)]);
    Ok(())
}

#[tokio::test]
async fn a_crash_after_the_commit_makes_the_next_delivery_a_duplicate() -> anyhow::Result<()> {
    let (harness, store) = harness().await?;
    let delivered = harness.deliver(&order("o-1")).copies(3).crash_after_commit(1).await?;
    assert_eq!(delivered.crashes, 1);
    // The one that took effect did not live to say so; when it is delivered again, it is a duplicate as well.
    assert_eq!(delivered.done("ledger"), 0);
    assert_eq!(delivered.duplicates("ledger"), 3);
    assert_eq!(ledger(&store).await?, [("o-1".to_owned(), 4200)]);
    Ok(())
}

#[tokio::test]
async fn everything_at_once_posts_once() -> anyhow::Result<()> {
    let (harness, store) = harness().await?;
    let delivered =
        harness.deliver(&order("o-1")).copies(3).crash_before_commit(1).crash_after_commit(1).await?;
    assert_eq!(delivered.crashes, 2);
    assert_eq!(ledger(&store).await?, [("o-1".to_owned(), 4200)]);
    Ok(())
}

#[tokio::test]
async fn another_order_is_another_message() -> anyhow::Result<()> {
    let (harness, store) = harness().await?;
    harness.deliver(&order("o-1")).await?;
    let delivered = harness.deliver(&order("O-1")).await?;
    assert_eq!(delivered.done("ledger"), 1);
    assert_eq!(ledger(&store).await?, [("O-1".to_owned(), 4200), ("o-1".to_owned(), 4200)]);
    Ok(())
}
