//! The database that a command is about.

use std::path::Path;

use anyhow::{Context, Result};
use oncebox::{Error, ErrorKind, Inbox, LogStore, PostgresStore, SqliteStore};

use crate::cli::Common;
use crate::config::Config;
use crate::exit::{NotFound, Usage};

/// Where messages are, if nothing is said.
pub(crate) const DEFAULT_URL: &str = "sqlite://oncebox.db";

/// Which database is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) schema: Option<String>,
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
    pub(crate) async fn open(&self) -> Result<Opened> {
        if let Some(file) = self.file()
            && !Path::new(file).exists()
        {
            return Err(NotFound(format!(
                "there is no database {file}: `oncebox migrate up` makes one, and so does `oncebox serve`, unless store.migrate is \
                 false; --store names another"
            ))
            .into());
        }
        self.open_or_create().await
    }

    /// Opens it; tables that are not there, or not those that this program needs, are an error.
    pub(crate) async fn open_ready(&self) -> Result<Opened> {
        let opened = self.open().await?;
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
    pub(crate) async fn open_or_create(&self) -> Result<Opened> {
        let doing = || format!("opening {}", self.shown());
        match self.scheme() {
            "sqlite" => {
                if self.schema.is_some() {
                    return Err(
                        Usage("--schema is for PostgreSQL: give each SQLite inbox a file".into()).into()
                    );
                }
                Ok(Opened::Sqlite(SqliteStore::connect(&self.url).await.with_context(doing)?))
            }
            "postgres" | "postgresql" => {
                let mut store = PostgresStore::connect(&self.url).await.with_context(doing)?;
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
        (!path.is_empty() && path != ":memory:").then_some(path)
    }
}

/// An inbox with no handlers of its own, for looking and acting. It makes no lanes, signs no life and sweeps nothing by itself.
pub(crate) async fn operators_inbox<S: LogStore>(store: S) -> Result<Inbox<S>> {
    // How large a body may be is said by those who accept.
    Ok(Inbox::builder(store).for_operators().metrics(false).max_body_bytes(usize::MAX).build().await?)
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
        assert_eq!(target("sqlite::memory:").file(), None);
        assert_eq!(target("postgres://db/x").file(), None);
    }

    #[tokio::test]
    async fn what_is_no_database_is_said_so() {
        let error = target("mysql://db/x").open().await.unwrap_err();
        assert!(error.to_string().contains("write sqlite://FILE or postgres://"), "{error}");
        let error = target("sqlite://nowhere/at.db").open().await.unwrap_err();
        assert!(error.is::<NotFound>(), "{error}");
    }
}
