//! The database that a command is about.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use oncebox::{Error, ErrorKind, Inbox, LogStore, Operators, PostgresStore, Retention, SqliteStore};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};

use crate::cli::Common;
use crate::config::Config;
use crate::exit::{Migrating, NotFound, Usage, database_code};

/// Where messages are, if nothing is said.
pub(crate) const DEFAULT_URL: &str = "sqlite://oncebox.db";

/// Which database is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) schema: Option<String>,
}

/// Why a database in memory is of no use to a program that others are to find their messages with.
pub(crate) const IN_MEMORY: &str = "a database in memory is gone with the program, and every message with it: name a file, as in \
                                    sqlite://oncebox.db";

/// How long a look waits for somebody who writes.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// What a database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// To look: a file that may only be read will do.
    Looking,
    /// To act, once.
    Acting,
    /// To work for a long time: a server that is just starting is waited for.
    Working,
}

/// An open database.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

/// Runs an expression with the store, whichever it is.
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
    /// The version of the tables that is there, 0 where there are none, and the one that this program needs.
    pub(crate) async fn schema_version(&self) -> Result<(i64, i64)> {
        with_store!(self, store => Ok(store.schema_version().await?))
    }

    /// Makes the tables, or brings them to the version that this program needs.
    pub(crate) async fn migrate(&self) -> Result<()> {
        with_store!(self, store => store.migrate().await).context(Migrating)
    }

    /// The operator's side of the inbox. It creates no lanes, sends no heartbeats and sweeps nothing by itself.
    pub(crate) async fn operators(&self) -> Result<Operators> {
        self.operators_keeping(Retention::default(), None).await
    }

    /// The same, with the retention that its sweep and prune apply.
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
    let mut builder = Inbox::builder(store).for_operators().metrics(false).retention(retention);
    if let Some(time) = keep_messages {
        builder = builder.keep_messages(time);
    }
    // The programs that accept messages limit their size.
    let inbox = builder.max_body_bytes(usize::MAX).build().await?;
    Ok(inbox.operators())
}

impl Target {
    /// What the command line says, else the configuration, else the default.
    pub(crate) fn of(common: &Common) -> Result<Self> {
        match &common.store {
            // A configuration that is broken does not keep anybody from looking.
            Some(url) => Ok(Self { url: url.clone(), schema: common.schema.clone() }),
            None => Ok(Config::load(common)?.target),
        }
    }

    /// Opens it; a file that is not there is an error.
    pub(crate) async fn open(&self, reason: For) -> Result<Opened> {
        if let Some(file) = self.file()
            // What may not be looked at may be there.
            && matches!(Path::new(file).try_exists(), Ok(false))
        {
            return Err(NotFound(format!(
                "there is no database {file}: `oncebox migrate up` makes one, and so does `oncebox serve`, unless store.migrate is \
                 false; --store names another"
            ))
            .into());
        }
        self.open_or_create(reason).await
    }

    /// Opens it; tables that are not there, or not those that this program needs, are an error.
    pub(crate) async fn open_ready(&self, reason: For) -> Result<Opened> {
        let opened = self.open(reason).await?;
        let (there, needed) = opened.schema_version().await?;
        let shown = self.shown();
        let message = match there {
            0 => format!("{shown} has no Oncebox tables{}: run `oncebox migrate up`", self.in_schema()),
            _ if there < needed => {
                format!(
                    "the tables of {shown} have version {there}, and {needed} is needed: run `oncebox migrate up`"
                )
            }
            _ if there > needed => {
                format!(
                    "the tables of {shown} have version {there}, and this program knows {needed}: update it"
                )
            }
            _ => return Ok(opened),
        };
        Err(Error::new(ErrorKind::Schema, message).into())
    }

    /// Opens it for an operator's command; the tables must be there, in the version that this program needs.
    pub(crate) async fn operators(&self, reason: For) -> Result<Operators> {
        self.open_ready(reason).await?.operators().await
    }

    /// Where tables are looked for, on PostgreSQL.
    fn in_schema(&self) -> String {
        match self.is_sqlite() {
            true => String::new(),
            false => format!(" in the schema {}", self.schema_name()),
        }
    }

    /// Whether it is a file, or in memory.
    pub(crate) fn is_sqlite(&self) -> bool {
        self.scheme() == "sqlite"
    }

    /// Whether it is a server.
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.scheme(), "postgres" | "postgresql")
    }

    /// The schema on PostgreSQL.
    pub(crate) fn schema_name(&self) -> &str {
        self.schema.as_deref().unwrap_or("oncebox")
    }

    /// Opens it; a file that is not there is made.
    pub(crate) async fn open_or_create(&self, reason: For) -> Result<Opened> {
        let doing = || format!("opening {}", self.shown());
        match self.scheme() {
            "sqlite" => {
                if self.schema.is_some() {
                    return Err(
                        Usage("--schema is for PostgreSQL: give each SQLite inbox a file".into()).into()
                    );
                }
                Ok(Opened::Sqlite(self.open_file(reason).await?))
            }
            "postgres" | "postgresql" => {
                let store = match reason {
                    For::Working => PostgresStore::connect(&self.url).await,
                    For::Looking | For::Acting => PostgresStore::connect_at_once(&self.url).await,
                };
                let mut store = store.with_context(doing)?;
                if let Some(schema) = &self.schema {
                    store = store.with_schema(schema)?;
                }
                Ok(Opened::Postgres(store))
            }
            _ => Err(Usage(format!(
                "{:?} names no database: write sqlite://FILE or postgres://USER@HOST/DATABASE",
                self.shown()
            ))
            .into()),
        }
    }

    /// Opens an SQLite database, or says why that cannot be.
    async fn open_file(&self, reason: For) -> Result<SqliteStore> {
        let Some(file) = self.file() else { return Err(Usage(IN_MEMORY.to_owned()).into()) };
        let path = Path::new(file);
        if path.is_dir() {
            let text = format!(
                "{file} is a folder, and the database is a file: name one in it, as in {file}/oncebox.db"
            );
            return Err(Usage(text).into());
        }
        let folder = folder_of(path);
        if matches!(folder.try_exists(), Ok(false)) {
            let text = format!("there is no folder {}: make it, or name another file", folder.display());
            return Err(NotFound(text).into());
        }
        if let Err(error) = File::open(path)
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(Error::unavailable(format!("this user may not read {file}"), error).into());
        }
        let opened = match (self.is_read_only(path), reason) {
            (true, For::Looking) => self.open_to_read(path).await,
            (true, For::Acting | For::Working) => Err(may_not_write(path).into()),
            (false, _) => SqliteStore::connect(&self.url).await.map_err(anyhow::Error::from),
        };
        match opened {
            Err(error) if result_code(&error) == Some(NOT_A_DATABASE) => {
                Err(Usage(format!("{file} is no SQLite database: --store names another file")).into())
            }
            opened => opened.with_context(|| format!("opening {}", self.shown())),
        }
    }

    /// A store for looking at a file that this user may not write, or does not want to.
    async fn open_to_read(&self, path: &Path) -> Result<SqliteStore> {
        let options = SqliteConnectOptions::from_str(&self.url)
            .with_context(|| format!("reading {:?}", self.url))?
            .read_only(true)
            .create_if_missing(false)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(LOOK_TIMEOUT);
        let looked = async {
            let pool = SqlitePoolOptions::new().test_before_acquire(false).connect_with(options).await?;
            // Nothing is read before the first question.
            sqlx::query("select count(*) from sqlite_schema").execute(&pool).await?;
            Ok(SqliteStore::new(pool))
        };
        looked.await.map_err(|error: sqlx::Error| {
            let error = anyhow::Error::from(error);
            match result_code(&error) {
                Some(CANNOT_OPEN | READ_ONLY) => {
                    Error::new(ErrorKind::Unavailable, cannot_even_read(path)).into()
                }
                _ => error,
            }
        })
    }

    /// Whether the file is there, and not to be written.
    fn is_read_only(&self, path: &Path) -> bool {
        self.has_parameter("mode=ro")
            || (path.exists() && OpenOptions::new().append(true).open(path).is_err())
    }

    fn has_parameter(&self, parameter: &str) -> bool {
        let parameters = self.url.split_once('?').map_or("", |(_, parameters)| parameters);
        parameters.split('&').any(|other| other == parameter)
    }

    /// Whether it is gone with the program that opens it.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.is_sqlite() && self.file().is_none()
    }

    /// The URL without its password.
    pub(crate) fn shown(&self) -> String {
        // What follows may have a password too.
        let url = match self.is_postgres() {
            true => self.url.split('?').next().unwrap_or_default(),
            false => &self.url,
        };
        let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
        let Some((user, host)) = rest.rsplit_once('@') else { return url.to_owned() };
        let user = user.split_once(':').map_or(user, |(user, _)| user);
        format!("{scheme}://{user}@{host}")
    }

    /// What is before the first colon.
    pub(crate) fn scheme(&self) -> &str {
        self.url.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// The file of an SQLite database that has one.
    pub(crate) fn file(&self) -> Option<&str> {
        let path = self.url.strip_prefix("sqlite:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        let path = path.split('?').next().unwrap_or(path);
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

/// The folder in which a file is.
pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn may_not_write(file: &Path) -> Error {
    let text = format!(
        "this user may not write {}, which this needs: run it as the user that the programs run as, or give this one the right",
        file.display()
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// SQLite keeps what was written last in two files beside the database, and makes them even for those who only read.
fn cannot_even_read(file: &Path) -> String {
    let (file, folder) = (file.display(), folder_of(file).display());
    format!(
        "this user may not write {file}, and it cannot be read without that now: SQLite needs {file}-wal and {file}-shm, and \
         may not make them in {folder}. Look while a program has it open, or as the user that the programs run as"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target { url: url.into(), schema: None }
    }

    #[test]
    fn no_password_is_shown() {
        assert_eq!(target("postgres://ann:s3cret@db/x").shown(), "postgres://ann@db/x");
        assert_eq!(target("postgres://ann@db/x").shown(), "postgres://ann@db/x");
        assert_eq!(target("postgres://db/x?user=ann&password=s3cret").shown(), "postgres://db/x");
        assert_eq!(target("sqlite://oncebox.db").shown(), "sqlite://oncebox.db");
    }

    #[test]
    fn databases_in_files_have_a_path() {
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
    async fn what_is_no_database_is_said_so() {
        let error = target("mysql://db/x").open(For::Looking).await.unwrap_err();
        assert!(error.to_string().contains("write sqlite://FILE or postgres://"), "{error}");
        let error = target("sqlite://nowhere/at.db").open(For::Looking).await.unwrap_err();
        assert!(error.is::<NotFound>(), "{error}");
        let error = target("sqlite::memory:").open_or_create(For::Working).await.unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("gone with the program"), "{error}");
    }
}
