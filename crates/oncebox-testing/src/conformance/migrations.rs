//! The schema: made once, however many processes start at once; checked, never altered by a build.

use std::future::Future;

use oncebox_core::{ErrorKind, Inbox, InboxStore};

/// An empty database, and what a store does to its schema.
pub trait MigratingFixture: Clone + Send + Sync + 'static {
    /// The store.
    type Store: InboxStore;

    /// Opens the database with connections of its own, as a process does.
    fn connect(&self) -> impl Future<Output = Self::Store> + Send;

    /// Migrates the database.
    fn migrate(&self, store: &Self::Store) -> impl Future<Output = ()> + Send;

    /// Runs the SQL that the store prints for migrations by hand.
    fn run_printed_sql(&self, store: &Self::Store) -> impl Future<Output = ()> + Send;

    /// The version of the schema that is there, and the one that is needed.
    fn schema_version(&self, store: &Self::Store) -> impl Future<Output = (i64, i64)> + Send;

    /// Records another version, as a later release would.
    fn record_version(&self, store: &Self::Store, version: i64) -> impl Future<Output = ()> + Send;

    /// How many tables or schemas of the store there are.
    fn count_objects(&self, store: &Self::Store) -> impl Future<Output = i64> + Send;

    /// How many versions are recorded.
    fn count_versions(&self, store: &Self::Store) -> impl Future<Output = i64> + Send;
}

/// A version later than any that will ever be.
const FUTURE: i64 = 99_999;

/// Each with connections of its own.
pub async fn twenty_starters_at_once_migrate_once<F: MigratingFixture>(fixture: F) {
    let starters: Vec<_> = (0..20)
        .map(|_| {
            let fixture = fixture.clone();
            tokio::spawn(async move {
                let store = fixture.connect().await;
                fixture.migrate(&store).await;
                // The build checks the schema: a starter must not see one that is half migrated.
                Inbox::builder(store).build().await.unwrap();
            })
        })
        .collect();
    for starter in starters {
        starter.await.unwrap();
    }
    let store = fixture.connect().await;
    let versions = fixture.count_versions(&store).await;
    assert_eq!(fixture.schema_version(&store).await, (versions, versions));
}

/// Only `migrate` changes the schema.
pub async fn a_build_on_an_empty_database_says_what_to_do_and_alters_nothing<F: MigratingFixture>(
    fixture: F,
) {
    let store = fixture.connect().await;
    let error = Inbox::builder(store.clone()).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("store.migrate()"), "{error}");
    assert_eq!(fixture.count_objects(&store).await, 0);
}

/// A program can report both versions.
pub async fn the_version_there_and_the_one_needed_can_be_asked_for<F: MigratingFixture>(fixture: F) {
    let store = fixture.connect().await;
    let (there, needed) = fixture.schema_version(&store).await;
    assert_eq!(there, 0);
    fixture.migrate(&store).await;
    assert_eq!(fixture.schema_version(&store).await, (needed, needed));
    fixture.record_version(&store, FUTURE).await;
    assert_eq!(fixture.schema_version(&store).await, (FUTURE, needed));
}

/// After the printed SQL, `migrate` changes nothing.
pub async fn the_printed_sql_is_all_that_is_needed<F: MigratingFixture>(fixture: F) {
    let store = fixture.connect().await;
    fixture.run_printed_sql(&store).await;
    Inbox::builder(store.clone()).build().await.unwrap();
    let before = fixture.count_versions(&store).await;
    fixture.migrate(&store).await;
    assert_eq!(fixture.count_versions(&store).await, before);
}

/// An older program does not write into tables that it does not know.
pub async fn a_database_from_the_future_is_refused<F: MigratingFixture>(fixture: F) {
    let store = fixture.connect().await;
    fixture.migrate(&store).await;
    fixture.record_version(&store, FUTURE).await;
    let error = Inbox::builder(store).build().await.unwrap_err();
    assert!(error.to_string().contains("update the program"), "{error}");
}
