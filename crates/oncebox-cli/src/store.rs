//! The database that a command is about.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use oncebox::store::{Capture, HandlerId, OutboxSize, WaitingMessage};
use oncebox::{
    Error, ErrorKind, Inbox, LogStore, MessageId, Operators, OutboxStatus, Place, PostgresStore, Retention,
    SqliteStore, StoredMessage,
};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};

use crate::cli::CommonArgs;
use crate::config::Config;
use crate::exit::{Migrating, NotFound, Usage, database_code};

/// The database without a configuration and without `--store`.
pub(crate) const DEFAULT_URL: &str = "sqlite://oncebox.db";

/// The database to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseTarget {
    pub(crate) url: String,
    pub(crate) schema: Option<String>,
}

/// Refused, because other commands of the program could not see the messages.
pub(crate) const IN_MEMORY: &str = "a database in memory loses every message when the program ends: use a file, for example sqlite://oncebox.db";

/// The remedy for missing or old tables. `work` and `accept` need it too.
const MIGRATE: &str =
    "run `oncebox migrate up` (only `oncebox serve` does that by itself, unless store.migrate is false)";

/// How long a reader waits for a writer.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The purpose for which a database is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenPurpose {
    /// To read. A read-only file is enough.
    Read,
    /// To write once, for a command.
    Act,
    /// To run for a long time. Waits for a server that is just starting.
    Run,
}

/// An open database.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

/// Evaluates an expression with the store of either database.
macro_rules! with_store {
    ($opened:expr, $store:ident => $body:expr) => {
        match $opened {
            $crate::store::Opened::Sqlite($store) => $body,
            $crate::store::Opened::Postgres($store) => $body,
        }
    };
}
pub(crate) use with_store;

impl Opened {
    /// The present schema version, 0 without tables, and the version that this program needs.
    pub(crate) async fn schema_version(&self) -> Result<(i64, i64)> {
        with_store!(self, store => Ok(store.schema_version().await?))
    }

    /// Creates the tables, or upgrades them to the version that this program needs.
    pub(crate) async fn migrate(&self) -> Result<()> {
        // The context selects the hint for a missing privilege (`exit::hint`).
        with_store!(self, store => store.migrate().await).context(Migrating)
    }

    /// The state of the outbox.
    pub(crate) async fn outbox_status(&self) -> Result<OutboxStatus> {
        with_store!(self, store => Ok(store.outbox_status().await?))
    }

    /// The disk space of the outbox and the log.
    pub(crate) async fn outbox_size(&self) -> Result<OutboxSize> {
        with_store!(self, store => Ok(store.outbox_size().await?))
    }

    /// The messages that wait for the mover, oldest first.
    pub(crate) async fn waiting_messages(&self, limit: u32) -> Result<Vec<WaitingMessage>> {
        with_store!(self, store => Ok(store.waiting_messages(limit).await?))
    }

    /// The message with this id, if it waits for the mover.
    pub(crate) async fn waiting_message(&self, id: MessageId) -> Result<Option<WaitingMessage>> {
        with_store!(self, store => Ok(store.waiting_message(id).await?))
    }

    /// The place in the log of the published message with this id.
    pub(crate) async fn find_published(&self, id: MessageId) -> Result<Option<Place>> {
        with_store!(self, store => Ok(store.find_published(id).await?))
    }

    /// The oldest messages in the log that a relay has not sent.
    pub(crate) async fn unsent_messages(&self, relay: HandlerId, limit: u32) -> Result<Vec<StoredMessage>> {
        with_store!(self, store => Ok(store.unsent_messages(relay, limit).await?))
    }

    /// The operators' side of the inbox. It creates no lanes, sends no heartbeats and deletes nothing by itself.
    pub(crate) async fn operators(&self) -> Result<Operators> {
        self.operators_keeping(Retention::default(), None).await
    }

    /// The same, with the retention for its `sweep` and `prune`.
    pub(crate) async fn operators_keeping(
        &self,
        retention: Retention,
        keep_messages: Option<Duration>,
    ) -> Result<Operators> {
        with_store!(self, store => build_operators(store.clone(), retention, keep_messages).await)
    }
}

async fn build_operators<S: LogStore>(
    store: S,
    retention: Retention,
    keep_messages: Option<Duration>,
) -> Result<Operators> {
    // Without metrics: nothing could scrape a command that exits immediately.
    let mut builder = Inbox::builder(store).for_operators().metrics(false).retention(retention);
    if let Some(time) = keep_messages {
        builder = builder.keep_messages(time);
    }
    // An operator's corrected body has no limit. Programs that accept messages limit theirs.
    let inbox = builder.max_body_bytes(usize::MAX).build().await?;
    Ok(inbox.operators())
}

impl DatabaseTarget {
    /// The database of the command line, otherwise of the configuration, otherwise the default.
    pub(crate) fn of(common: &CommonArgs) -> Result<Self> {
        match &common.store {
            // Not read from the configuration, so an invalid one does not stop an operator.
            Some(url) => Ok(Self { url: url.clone(), schema: common.schema.clone() }),
            None => Ok(Config::load(common)?.target),
        }
    }

    /// Opens the database. A missing file is an error.
    pub(crate) async fn open(&self, reason: OpenPurpose) -> Result<Opened> {
        if let Some(file) = self.file()
            // A file that this user may not look up may exist.
            && matches!(Path::new(file).try_exists(), Ok(false))
        {
            return Err(NotFound(format!(
                "database not found: {file}: run `oncebox migrate up` or `oncebox serve` to create it, or name another one with \
                 --store"
            ))
            .into());
        }
        self.open_or_create(reason).await
    }

    /// Opens the database. Missing tables, or tables of another version, are an error.
    pub(crate) async fn open_ready(&self, reason: OpenPurpose) -> Result<Opened> {
        let opened = self.open(reason).await?;
        let (found, required) = opened.schema_version().await?;
        let url = self.redacted_url();
        let message = match found {
            0 => format!("{url} has no Oncebox tables{}: {MIGRATE}", self.in_schema()),
            _ if found < required => {
                format!("{url} has schema version {found}, but {required} is required: {MIGRATE}")
            }
            _ if found > required => {
                format!(
                    "{url} has schema version {found}, but this program supports {required}: update the program"
                )
            }
            _ => return Ok(opened),
        };
        Err(Error::new(ErrorKind::Schema, message).into())
    }

    /// Opens the database for an operator's command. The tables must have the version that this program needs.
    pub(crate) async fn operators(&self, reason: OpenPurpose) -> Result<Operators> {
        self.open_ready(reason).await?.operators().await
    }

    /// The schema, for error texts: on PostgreSQL only.
    fn in_schema(&self) -> String {
        match self.is_sqlite() {
            true => String::new(),
            false => format!(" in the schema {}", self.schema_name()),
        }
    }

    /// Whether this is SQLite, in a file or in memory.
    pub(crate) fn is_sqlite(&self) -> bool {
        self.scheme() == "sqlite"
    }

    /// Whether this is PostgreSQL.
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.scheme(), "postgres" | "postgresql")
    }

    /// The schema on PostgreSQL.
    pub(crate) fn schema_name(&self) -> &str {
        self.schema.as_deref().unwrap_or("oncebox")
    }

    /// Opens the database. A missing file is created.
    pub(crate) async fn open_or_create(&self, reason: OpenPurpose) -> Result<Opened> {
        let doing = || format!("opening {}", self.redacted_url());
        match self.scheme() {
            "sqlite" => {
                if self.schema.is_some() {
                    return Err(Usage(
                        "--schema applies to PostgreSQL only: on SQLite use one file per inbox".into(),
                    )
                    .into());
                }
                Ok(Opened::Sqlite(self.open_file(reason).await?))
            }
            "postgres" | "postgresql" => {
                let store = match reason {
                    // A service may start together with its server, so it waits. An operator needs the error at once.
                    OpenPurpose::Run => PostgresStore::connect(&self.url).await,
                    OpenPurpose::Read | OpenPurpose::Act => PostgresStore::connect_at_once(&self.url).await,
                };
                let mut store = store.with_context(doing)?;
                if let Some(schema) = &self.schema {
                    store = store.with_schema(schema)?;
                }
                Ok(Opened::Postgres(store))
            }
            _ => Err(Usage(self.invalid_url()).into()),
        }
    }

    /// Opens an SQLite database. Each cause of a failure has its own error text, because SQLite has one for all.
    async fn open_file(&self, reason: OpenPurpose) -> Result<SqliteStore> {
        let Some(file) = self.file() else { return Err(Usage(IN_MEMORY.to_owned()).into()) };
        let path = Path::new(file);
        if path.is_dir() {
            let text =
                format!("{file} is a folder: name a database file in it, for example {file}/oncebox.db");
            return Err(Usage(text).into());
        }
        let folder = folder_of(path);
        if matches!(folder.try_exists(), Ok(false)) {
            let text = format!("folder not found: {}: create it, or name another file", folder.display());
            return Err(NotFound(text).into());
        }
        // Tried before SQLite, which reports a missing permission and a missing file by the same code.
        if let Err(error) = File::open(path)
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(Error::unavailable(
                format!(
                    "no permission to read {file}: run as the user of the programs, or grant this one access"
                ),
                error,
            )
            .into());
        }
        let opened = match (self.is_read_only(path), reason) {
            (true, OpenPurpose::Read) => self.open_to_read(path).await,
            (true, OpenPurpose::Act | OpenPurpose::Run) => Err(no_write_permission(path).into()),
            (false, _) => SqliteStore::connect(&self.url).await.map_err(anyhow::Error::from),
        };
        match opened {
            Err(error) if result_code(&error) == Some(NOT_A_DATABASE) => {
                Err(Usage(format!("{file} is not an SQLite database: name another file with --store")).into())
            }
            opened => opened.with_context(|| format!("opening {}", self.redacted_url())),
        }
    }

    /// A store for reading a file without write permission, or with `mode=ro`.
    async fn open_to_read(&self, path: &Path) -> Result<SqliteStore> {
        let options = SqliteConnectOptions::from_str(&self.url)
            .with_context(|| format!("reading {:?}", self.url))?
            .read_only(true)
            .create_if_missing(false)
            // Nothing is written here, but the store and `doctor` check this setting on every connection.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(READ_TIMEOUT);
        let opened = async {
            // Without a test before each use: a file does not disconnect as a server does.
            let pool = SqlitePoolOptions::new().test_before_acquire(false).connect_with(options).await?;
            // SQLite reads nothing before the first query.
            sqlx::query("select count(*) from sqlite_schema").execute(&pool).await?;
            Ok(SqliteStore::new(pool))
        };
        opened.await.map_err(|error: sqlx::Error| {
            let error = anyhow::Error::from(error);
            match result_code(&error) {
                Some(CANNOT_OPEN | READ_ONLY) => {
                    Error::new(ErrorKind::Unavailable, no_journal_permission(path)).into()
                }
                _ => error,
            }
        })
    }

    /// Whether the file exists and cannot be written.
    fn is_read_only(&self, path: &Path) -> bool {
        self.has_parameter("mode=ro")
            // By opening it: permission bits are not the whole truth for root, access lists and read-only mounts.
            || (path.exists() && OpenOptions::new().append(true).open(path).is_err())
    }

    fn has_parameter(&self, parameter: &str) -> bool {
        let parameters = self.url.split_once('?').map_or("", |(_, parameters)| parameters);
        parameters.split('&').any(|other| other == parameter)
    }

    /// Whether the database is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.is_sqlite() && self.file().is_none()
    }

    /// The URL without its password.
    pub(crate) fn redacted_url(&self) -> String {
        // Parameters may have a password too.
        let url = match self.is_postgres() {
            true => self.url.split('?').next().unwrap_or_default(),
            false => &self.url,
        };
        let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
        // The last one: a password may contain an `@`.
        let Some((user, host)) = rest.rsplit_once('@') else { return url.to_owned() };
        let user = user.split_once(':').map_or(user, |(user, _)| user);
        format!("{scheme}://{user}@{host}")
    }

    /// The error text for a URL of another database.
    pub(crate) fn invalid_url(&self) -> String {
        format!(
            "invalid database URL {:?}: write sqlite://FILE or postgres://USER@HOST/DATABASE",
            self.redacted_url()
        )
    }

    /// The part before the first colon.
    pub(crate) fn scheme(&self) -> &str {
        self.url.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// The file of an SQLite database; `None` in memory.
    pub(crate) fn file(&self) -> Option<&str> {
        let path = self.url.strip_prefix("sqlite:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        let path = path.split('?').next().unwrap_or(path);
        // SQLite's own rules. An empty path is a temporary database.
        let is_in_memory = path.is_empty() || path.contains(":memory:") || self.has_parameter("mode=memory");
        (!is_in_memory).then_some(path)
    }
}

// SQLite's result codes: the low byte of the extended ones.
const READ_ONLY: i32 = 8;
const CANNOT_OPEN: i32 = 14;
const NOT_A_DATABASE: i32 = 26;

fn result_code(error: &anyhow::Error) -> Option<i32> {
    Some(database_code(error)?.parse::<i32>().ok()? & 0xff)
}

/// The folder of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn no_write_permission(file: &Path) -> Error {
    let text = format!(
        "no permission to write {}: run this command as the user of the programs, or grant this one access",
        file.display()
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// SQLite needs two files beside the database even for reading. They hold the latest writes.
fn no_journal_permission(file: &Path) -> String {
    let (file, folder) = (file.display(), folder_of(file).display());
    format!(
        "cannot read {file}: SQLite needs {file}-wal and {file}-shm, and this user may not create them in {folder}. Read it \
         while a program has it open, or as the user of the programs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> DatabaseTarget {
        DatabaseTarget { url: url.into(), schema: None }
    }

    #[test]
    fn no_password_is_shown() {
        assert_eq!(target("postgres://ann:s3cret@db/x").redacted_url(), "postgres://ann@db/x");
        assert_eq!(target("postgres://ann@db/x").redacted_url(), "postgres://ann@db/x");
        assert_eq!(target("postgres://db/x?user=ann&password=s3cret").redacted_url(), "postgres://db/x");
        assert_eq!(target("sqlite://oncebox.db").redacted_url(), "sqlite://oncebox.db");
    }

    #[test]
    fn a_database_file_has_a_path_and_a_database_in_memory_has_none() {
        assert_eq!(target("sqlite://a/b.db?mode=rwc").file(), Some("a/b.db"));
        assert_eq!(target("sqlite:c.db").file(), Some("c.db"));
        for in_memory in ["sqlite::memory:", "sqlite://:memory:", "sqlite://x?mode=memory", "sqlite://"] {
            assert_eq!(target(in_memory).file(), None);
            assert!(target(in_memory).is_in_memory());
        }
        assert!(!target("postgres://db/x").is_in_memory());
        assert_eq!(target("postgres://db/x").file(), None);
    }

    #[tokio::test]
    async fn an_invalid_url_and_a_missing_file_are_reported() {
        let error = target("mysql://db/x").open(OpenPurpose::Read).await.unwrap_err();
        assert!(error.to_string().contains("write sqlite://FILE or postgres://"), "{error}");
        let error = target("sqlite://nowhere/at.db").open(OpenPurpose::Read).await.unwrap_err();
        assert!(error.is::<NotFound>(), "{error}");
        let error = target("sqlite::memory:").open_or_create(OpenPurpose::Run).await.unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("in memory loses"), "{error}");
    }
}
