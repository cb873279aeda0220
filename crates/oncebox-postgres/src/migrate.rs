//! The schema: its versions, and how a database gets there.

use oncebox_core::mutant::edited;
use oncebox_core::{Error, ErrorKind};
use sqlx::{AssertSqlSafe, Executor, PgConnection};

use crate::fault::failed;
use crate::mutants::EDITS;
use crate::store::PostgresStore;

/// Every step, in order, by the name of its file; the first one leads to version 1.
const MIGRATIONS: &[(&str, &str)] = &[
    ("0001_inbox", include_str!("migrations/0001_inbox.sql")),
    ("0002_log", include_str!("migrations/0002_log.sql")),
];
const GRANTS: &str = include_str!("sql/grants.sql");

impl PostgresStore {
    /// Brings the database to the version of this crate. Any number of processes may do so at once; a database
    /// that is there already is left alone.
    pub async fn migrate(&self) -> Result<(), Error> {
        let pool = self.pool.clone();
        let store = self.clone();
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        let migrated = tokio::spawn(async move {
            // Whatever the default is: what is read behind the lock must be newer than the lock.
            let mut tx = pool.begin_with(store.statements.begin_shared.clone()).await?;
            sqlx::query(store.statements.migration_lock.clone()).execute(&mut *tx).await?;
            let from = usize::try_from(store.version(&mut tx).await?).unwrap_or(0);
            for (file, step) in MIGRATIONS.iter().skip(from) {
                let step = edited(EDITS, file, step);
                tx.execute(sqlx::raw_sql(AssertSqlSafe(store.schema.within(step)))).await?;
            }
            tx.commit().await
        });
        match migrated.await {
            Ok(migrated) => migrated.map_err(failed("migrate the database"))?,
            Err(stopped) => return Err(Error::unavailable("the runtime is shutting down", stopped)),
        }
        self.check_version().await
    }

    /// The SQL that `migrate` runs on an empty database, for those who migrate by other means.
    pub fn migration_sql(&self) -> String {
        let steps: Vec<&str> = MIGRATIONS.iter().map(|(_, step)| *step).collect();
        self.schema.within(&steps.join("\n"))
    }

    /// The SQL that grants a role what the running program needs, and nothing more.
    pub fn grants_sql(&self, role: &str) -> String {
        self.schema.within(GRANTS).replace("{role}", &role.replace('"', "\"\""))
    }

    pub(crate) async fn check_version(&self) -> Result<(), Error> {
        let mut conn = self.pool.acquire().await.map_err(failed("connect"))?;
        let there = self.version(&mut conn).await.map_err(failed("read the version of the schema"))?;
        let needed = MIGRATIONS.len() as i64;
        let schema = self.schema.name();
        let message = match there {
            0 => format!(
                "the database has no Oncebox tables in the schema {schema}: run store.migrate(), or the SQL of \
                 store.migration_sql()"
            ),
            _ if there < needed => format!(
                "the Oncebox tables in the schema {schema} have version {there}, this program needs {needed}: run \
                 store.migrate()"
            ),
            _ if there > needed => format!(
                "the Oncebox tables in the schema {schema} have version {there}, this program knows {needed} only: \
                 update the program"
            ),
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Schema, message))
    }

    /// Says loudly what could lose a commit, and refuses servers that are too old.
    pub(crate) async fn check_durability(&self) -> Result<(), Error> {
        let doing = "read its settings";
        let mut conn = self.pool.acquire().await.map_err(failed(doing))?;
        let setting = "select current_setting($1)";
        let mut read = async |name: &str| {
            sqlx::query_scalar::<_, String>(setting)
                .bind(name)
                .fetch_one(&mut *conn)
                .await
                .map_err(failed(doing))
        };
        let version = read("server_version_num").await?;
        if version.parse::<u32>().is_ok_and(|version| version < 130_000) {
            let message = format!("PostgreSQL {version} is too old: version 13 or newer is needed");
            return Err(Error::new(ErrorKind::Schema, message));
        }
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            if read(name).await? == "off" {
                tracing::error!("a crash can lose acknowledged messages: set `{name} = on` in PostgreSQL");
            }
        }
        Ok(())
    }

    /// The version that the database has; 0 if it has none.
    async fn version(&self, conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
        let tables: i64 = sqlx::query_scalar(self.statements.has_version_table.clone())
            .bind(self.schema.name())
            .fetch_one(&mut *conn)
            .await?;
        if tables == 0 {
            return Ok(0);
        }
        let version: Option<i64> =
            sqlx::query_scalar(self.statements.version.clone()).fetch_one(conn).await?;
        Ok(version.unwrap_or(0))
    }
}
