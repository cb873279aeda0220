//! The database of the demo: a new file, or a new schema.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;
use tokio::time::timeout;
use uuid::Uuid;

use crate::cli::CommonArgs;
use crate::demo::history;
use crate::demo::ledger::{LedgerStore, table};
use crate::exit::Usage;
use crate::store::{DatabaseTarget, OpenPurpose, Opened, with_store};

/// The file's name in its folder.
pub(super) const FILE: &str = "demo.db";
/// The maximum time for dropping a schema.
const DROP_LIMIT: Duration = Duration::from_secs(20);
/// PostgreSQL's code for a schema that exists.
const DUPLICATE_SCHEMA: &str = "42P06";

/// A database that only this demo uses.
#[derive(Debug)]
pub(super) struct DemoDatabase {
    pub(super) target: DatabaseTarget,
    pub(super) opened: Opened,
    /// The folder in which database and history are kept.
    keep: Option<PathBuf>,
    /// Whether the demo has created the schema, and drops it at the end.
    owns_schema: bool,
    /// The folder of the database, if it is removed at the end.
    temporary: Option<TempDir>,
}

impl DemoDatabase {
    /// Opens the database, which must be new.
    pub(super) async fn open(common: &CommonArgs, keep: Option<&Path>) -> Result<Self> {
        if let Some(folder) = keep {
            prepare_folder(folder)?;
        }
        let (target, temporary) = match &common.store {
            Some(url) => (named_database(url, common)?, None),
            None => {
                let (folder, temporary) = match keep {
                    Some(folder) => (folder.to_owned(), None),
                    None => {
                        let temporary = tempfile::Builder::new().prefix("oncebox-demo-").tempdir();
                        let temporary = temporary
                            .context("cannot create a temporary folder: set TMPDIR to another place")?;
                        (temporary.path().to_owned(), Some(temporary))
                    }
                };
                let url = sqlite_url(&folder.join(FILE))?;
                (DatabaseTarget { url, schema: common.schema.clone() }, temporary)
            }
        };
        let opened = target.open_or_create(OpenPurpose::Act).await?;
        let owns_schema = target.schema.is_some() && common.schema.is_none();
        Ok(Self { target, opened, keep: keep.map(Path::to_owned), owns_schema, temporary })
    }

    /// Creates the schema, the inbox's tables and the ledger.
    pub(super) async fn create(&mut self) -> Result<()> {
        if let (Opened::Postgres(store), Some(schema)) = (&self.opened, &self.target.schema) {
            // Not `if not exists`: the demo drops the schema at its end, and must not drop one of the user's.
            let create = AssertSqlSafe(format!("create schema \"{schema}\""));
            let created = sqlx::query(create).execute(store.pool()).await;
            if let Err(sqlx::Error::Database(error)) = &created
                && error.code().as_deref() == Some(DUPLICATE_SCHEMA)
            {
                let text = format!(
                    "the schema {schema} exists already: name another one with --schema, or remove that option"
                );
                return Err(Usage(text).into());
            }
            created.with_context(|| format!("cannot create the schema {schema}"))?;
            self.owns_schema = true;
        }
        let table = table(self.target.schema.as_deref());
        with_store!(&self.opened, store => {
            store.migrate().await?;
            store.create(&table).await.context("cannot create the ledger")
        })
    }

    /// The file of the history, if it is kept.
    pub(super) fn history_file(&self) -> Option<PathBuf> {
        self.keep.as_ref().map(|folder| folder.join(history::FILE))
    }

    /// A sentence about the files that remain after the demo.
    pub(super) fn remaining(&self) -> Option<String> {
        let database = match (&self.opened, &self.target.schema) {
            (Opened::Postgres(_), Some(schema)) => {
                format!("schema {schema} of {}", self.target.redacted_url())
            }
            _ => self.target.file().unwrap_or_default().to_owned(),
        };
        match &self.keep {
            Some(folder) => {
                let audit = format!("oncebox demo --audit {}", folder.display());
                let history = folder.join(history::FILE);
                Some(format!("Kept: {database} and {}. `{audit}` counts again.", history.display()))
            }
            None if self.temporary.is_none() && self.target.file().is_some() => {
                Some(format!("The database is {database}."))
            }
            None => None,
        }
    }

    /// Removes everything that is not kept.
    pub(super) async fn clear(self) -> Result<()> {
        match &self.opened {
            // Before `temporary` is dropped, which removes the folder with the file.
            Opened::Sqlite(store) => store.pool().close().await,
            Opened::Postgres(store) => {
                if let (true, None, Some(schema)) = (self.owns_schema, &self.keep, &self.target.schema) {
                    let drop = AssertSqlSafe(format!("drop schema if exists \"{schema}\" cascade"));
                    let dropped = timeout(DROP_LIMIT, sqlx::query(drop).execute(store.pool())).await;
                    let hint =
                        || format!("cannot drop the schema {schema}: run `drop schema {schema} cascade`");
                    dropped.with_context(hint)?.with_context(hint)?;
                }
                store.pool().close().await;
            }
        }
        Ok(())
    }
}

/// The URL of a database file.
pub(super) fn sqlite_url(file: &Path) -> Result<String> {
    match file.to_str() {
        Some(name) if !name.contains(['?', '%']) => Ok(format!("sqlite://{name}")),
        _ => Err(Usage(format!(
            "{} cannot be part of a URL: name a folder without '?' and '%'",
            file.display()
        ))
        .into()),
    }
}

/// Creates the folder. It must not have files of another demo.
fn prepare_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    for name in [FILE, history::FILE] {
        let file = folder.join(name);
        if file.exists() {
            let text = format!("{} exists already: name another folder with --keep", file.display());
            return Err(Usage(text).into());
        }
    }
    Ok(())
}

/// The database that `--store` names.
fn named_database(url: &str, common: &CommonArgs) -> Result<DatabaseTarget> {
    let mut target = DatabaseTarget { url: url.to_owned(), schema: common.schema.clone() };
    match target.scheme() {
        "sqlite" => {
            let Some(file) = target.file() else {
                let text = "the demo has several processes, which cannot share a database in memory: name a file, or remove --store";
                return Err(Usage(text.into()).into());
            };
            if fs::metadata(file).is_ok_and(|file| !file.is_file() || file.len() > 0) {
                let text = format!(
                    "{file} is not empty, and the demo does not change existing files: name a new file, or remove --store \
                     (ONCEBOX_STORE)"
                );
                return Err(Usage(text).into());
            }
        }
        "postgres" | "postgresql" if target.schema.is_none() => {
            let id = Uuid::now_v7().simple().to_string();
            // The last characters of a version 7 UUID are random; the first ones are the time.
            target.schema = Some(format!("oncebox_demo_{}", &id[id.len() - 12..]));
        }
        _ => {}
    }
    Ok(target)
}
