//! Databases that the library fills and the program reads.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use oncebox::{BoxError, Envelope, Inbox, LogStore, PostgresStore, Retry, SqliteStore};
use oncebox_servers::skip::skip_or_fail;
use serde_json::Value;
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

/// A database that is removed after the test.
pub(super) struct InboxDatabase {
    pub(super) folder: TempDir,
    pub(super) url: String,
    pub(super) schema: Option<String>,
}

/// The exit code and the output of the program.
pub(super) struct ProgramResult {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) bytes: Vec<u8>,
}

impl ProgramResult {
    /// Asserts success.
    #[track_caller]
    pub(super) fn ok(self) -> Self {
        self.ends_with_code(0)
    }

    #[track_caller]
    pub(super) fn ends_with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(super) fn prints(self, text: &str) -> Self {
        assert!(self.out.contains(text), "{text:?} is missing: {}{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(super) fn reports(self, text: &str) -> Self {
        assert!(self.err.contains(text), "{text:?} is missing: {}", self.err);
        self
    }

    /// Parses every line as JSON.
    #[track_caller]
    pub(super) fn json(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.out.lines().map(parse).collect()
    }
}

impl InboxDatabase {
    pub(super) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("inbox.db").display());
        Self { folder, url, schema: None }
    }

    /// A schema on the test server, if there is one.
    pub(super) fn postgres() -> Option<Self> {
        let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
            let test = std::thread::current().name().unwrap_or("a test of the program").to_owned();
            skip_or_fail(&test, "ONCEBOX_TEST_POSTGRES names no server");
            return None;
        };
        Some(Self { folder: tempfile::tempdir().unwrap(), url, schema: Some(unique_name()) })
    }

    pub(super) fn is_sqlite(&self) -> bool {
        self.schema.is_none()
    }

    /// Drops the schema. Files are removed with the folder.
    pub(super) async fn end(&self) {
        let Some(schema) = &self.schema else { return };
        self.sql(&format!("drop schema if exists {schema} cascade")).await;
    }

    /// Runs a statement as the owner of the database.
    pub(super) async fn sql(&self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        match self.is_sqlite() {
            true => {
                let store = self.sqlite_store().await;
                sqlx::raw_sql(statement).execute(store.pool()).await.unwrap();
                store.pool().close().await;
            }
            false => {
                let store = self.postgres_store().await;
                sqlx::raw_sql(statement).execute(store.pool()).await.unwrap();
                store.pool().close().await;
            }
        }
    }

    /// The number of rows in a table.
    pub(super) async fn count(&self, table: &str) -> i64 {
        match &self.schema {
            None => {
                let count = AssertSqlSafe(format!("select count(*) from oncebox_{table}"));
                sqlx::query_scalar(count).fetch_one(self.sqlite_store().await.pool()).await.unwrap()
            }
            Some(schema) => {
                let count = AssertSqlSafe(format!("select count(*) from {schema}.{table}"));
                sqlx::query_scalar(count).fetch_one(self.postgres_store().await.pool()).await.unwrap()
            }
        }
    }

    pub(super) async fn sqlite_store(&self) -> SqliteStore {
        SqliteStore::connect(&self.url).await.unwrap()
    }

    pub(super) async fn postgres_store(&self) -> PostgresStore {
        let store = PostgresStore::connect(&self.url).await.unwrap();
        store.with_schema(self.schema.as_deref().unwrap()).unwrap()
    }

    /// The program on this database.
    pub(super) fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncebox"));
        command.current_dir(self.folder.path()).args(arguments).args(["--store", &self.url]);
        command.args(self.schema.iter().flat_map(|schema| ["--schema", schema]));
        for variable in ["ONCEBOX_STORE", "ONCEBOX_CONFIG"] {
            command.env_remove(variable);
        }
        command.env("ONCEBOX_OPERATOR", "ann");
        command
    }

    /// Runs the program without a terminal.
    pub(super) fn oncebox(&self, arguments: &[&str]) -> ProgramResult {
        self.oncebox_with(arguments, b"")
    }

    /// The same with standard input.
    pub(super) fn oncebox_with(&self, arguments: &[&str], input: &[u8]) -> ProgramResult {
        result_of(&mut self.program(arguments), input)
    }
}

fn result_of(command: &mut Command, input: &[u8]) -> ProgramResult {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // An error means that the program exits before it reads.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    ProgramResult {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        bytes: output.stdout,
    }
}

/// A name that no other test uses, in this run or another one.
pub(super) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    format!("cli_{:x}_{}_{}", since.as_nanos(), std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An inbox with one lane and the handler `ledger`, which fails on bodies that contain "broken".
pub(super) async fn ledger<S: LogStore>(store: S) -> Inbox<S> {
    let immediately = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
    let post = async |envelope: Envelope, _: &mut S::Conn| -> Result<(), BoxError> {
        match envelope.body().windows(6).any(|word| word == b"broken") {
            true => Err("the ledger is closed".into()),
            false => Ok(()),
        }
    };
    let builder = Inbox::builder(store).stored().lanes(1).retry(immediately);
    builder.on_raw("ledger", ["order.paid"], post).build().await.unwrap()
}

/// Creates the tables and runs code with a ledger, on either database.
macro_rules! with_ledger {
    ($database:expr, $inbox:ident => $body:expr) => {
        match $database.is_sqlite() {
            true => {
                let store = $database.sqlite_store().await;
                store.migrate().await.unwrap();
                let $inbox = $crate::operate::database::ledger(store).await;
                $body
            }
            false => {
                let store = $database.postgres_store().await;
                store.migrate().await.unwrap();
                let $inbox = $crate::operate::database::ledger(store).await;
                $body
            }
        }
    };
}
pub(super) use with_ledger;

/// Accepts orders, given by key and body, and handles all of them. Returns the number of successes.
pub(super) async fn accept_and_work<S: LogStore>(inbox: &Inbox<S>, orders: &[(&str, &str)]) -> u64 {
    for (key, body) in orders {
        inbox.accept(Envelope::new("order.paid", *body).with_key(*key)).await.unwrap();
    }
    inbox.work_until_idle().await.unwrap().done
}

/// Runs tests on SQLite, and on PostgreSQL if there is a server.
macro_rules! on_each_database {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(&$crate::operate::database::InboxDatabase::sqlite()).await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let Some(database) = $crate::operate::database::InboxDatabase::postgres() else { return };
                    let database = std::sync::Arc::new(database);
                    let used = database.clone();
                    let ended = tokio::spawn(async move { super::$test(&used).await }).await;
                    database.end().await;
                    ended.unwrap();
                }
            )*
        }
    };
}
pub(super) use on_each_database;
