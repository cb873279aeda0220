//! The schema: its versions, and how a database gets there.

use std::time::Duration;

use oncebox_core::mutant::edited;
use oncebox_core::store::{doing, refusal};
use oncebox_core::{Error, ErrorKind};
use sqlx::{AssertSqlSafe, Row};

use crate::connection::TimedConnection;
use crate::fault::failed;
use crate::mutants::EDITS;
use crate::store::PostgresStore;

/// Every step, in order, by the name of its file; the first one leads to version 1.
pub(crate) const MIGRATIONS: &[(&str, &str)] = &[
    ("0001_inbox", include_str!("migrations/0001_inbox.sql")),
    ("0002_log", include_str!("migrations/0002_log.sql")),
    ("0003_marker_by_key", include_str!("migrations/0003_marker_by_key.sql")),
    ("0004_nothing_outlives", include_str!("migrations/0004_nothing_outlives.sql")),
    ("0005_outbox", include_str!("migrations/0005_outbox.sql")),
    ("0006_relays", include_str!("migrations/0006_relays.sql")),
];
const GRANTS: &str = include_str!("sql/grants.sql");

impl PostgresStore {
    /// Brings the database to the version of this crate. Any number of processes may do so at once; a database
    /// that is there already is left alone.
    pub async fn migrate(&self) -> Result<(), Error> {
        let store = self.clone();
        let doing = doing::MIGRATE;
        // In a task of its own: a caller that goes away must not leave it half done.
        let migrated = tokio::spawn(async move {
            let mut tx = store.connections.begin(doing).await?;
            // As long as the tables are large, or another process migrates.
            tx.may_take(Duration::MAX);
            store.migrate_in(&mut tx).await.map_err(failed(doing))
        });
        match migrated.await {
            Ok(migrated) => migrated?,
            Err(stopped) => return Err(refusal::runtime_stops(stopped)),
        }
        self.check_version().await
    }

    async fn migrate_in(&self, tx: &mut TimedConnection) -> Result<(), sqlx::Error> {
        // Of processes that start at once, one migrates. The others wait here and then find nothing to do.
        tx.execute(sqlx::query(self.statements.lock_migration.clone())).await?;
        let from = usize::try_from(self.version(tx).await?).unwrap_or(0);
        for (file, step) in MIGRATIONS.iter().skip(from) {
            let step = edited(EDITS, file, step);
            tx.execute(sqlx::raw_sql(AssertSqlSafe(self.schema.within(step)))).await?;
        }
        tx.commit().await
    }

    /// The SQL that `migrate` runs on an empty database, for migration tools.
    pub fn migration_sql(&self) -> String {
        let steps: Vec<&str> = MIGRATIONS.iter().map(|(_, step)| *step).collect();
        self.schema.within(&steps.join("\n"))
    }

    /// The SQL that grants a role what the running program needs, and nothing more.
    pub fn grants_sql(&self, role: &str) -> String {
        self.schema.within(GRANTS).replace("{role}", &role.replace('"', "\"\""))
    }

    /// The version of the schema that is there (0 where there is none), and the one that this crate needs.
    pub async fn schema_version(&self) -> Result<(i64, i64), Error> {
        let mut conn = self.connections.open(doing::CONNECT).await?;
        let there = self.version(&mut conn).await.map_err(failed(doing::READ_VERSION))?;
        Ok((there, MIGRATIONS.len() as i64))
    }

    pub(crate) async fn check_version(&self) -> Result<(), Error> {
        let (there, needed) = self.schema_version().await?;
        let tables = format!("Oncebox tables in the schema {}", self.schema.name());
        refusal::check_version(there, needed, &tables, "store.migration_sql()")
    }

    /// Logs settings that could lose a commit, and refuses servers that are too old.
    pub(crate) async fn check_durability(&self) -> Result<(), Error> {
        let doing = doing::READ_SETTINGS;
        let mut conn = self.connections.open(doing).await?;
        let mut read = async |name: &str| {
            let row = conn.fetch_one(sqlx::query("select current_setting($1)").bind(name.to_owned())).await;
            row.and_then(|row| row.try_get::<String, _>(0)).map_err(failed(doing))
        };
        let version = read("server_version_num").await?;
        // Version 13 is the first with `pg_current_xact_id`, which the guard needs.
        if version.parse::<u32>().is_ok_and(|version| version < 130_000) {
            let message = format!("PostgreSQL {version} is too old: upgrade it to version 13 or newer");
            return Err(Error::new(ErrorKind::Schema, message));
        }
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            if read(name).await? == "off" {
                tracing::error!("a crash can lose acknowledged messages: set `{name} = on` in PostgreSQL");
            }
        }
        let waits = !read("synchronous_standby_names").await?.is_empty();
        // `local` does not wait for the standby, even if one is named.
        if waits && read("synchronous_commit").await? == "local" {
            tracing::error!(
                "a failover can lose acknowledged messages: set `synchronous_commit = on` in PostgreSQL"
            );
        }
        if !waits && self.connections.servers.are_several() {
            tracing::warn!(
                "a failover can lose acknowledged messages, unless the servers share their storage: set \
                 `synchronous_standby_names` in PostgreSQL"
            );
        }
        Ok(())
    }

    /// The version that the database has; 0 if it has none.
    async fn version(&self, conn: &mut TimedConnection) -> Result<i64, sqlx::Error> {
        let has_table =
            sqlx::query(self.statements.has_version_table.clone()).bind(self.schema.name().to_owned());
        let tables: i64 = conn.fetch_one(has_table).await?.try_get(0)?;
        if tables == 0 {
            return Ok(0);
        }
        let row = conn.fetch_one(sqlx::query(self.statements.version.clone())).await?;
        Ok(row.try_get::<Option<i64>, _>(0)?.unwrap_or(0))
    }
}
