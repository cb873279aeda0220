//! `oncebox migrate`: the tables.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::{PostgresStore, SqliteStore};
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::cli::Common;
use crate::exit::Usage;
use crate::output::Output;
use crate::store::{For, Target};

/// What to do.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Bring the tables to the version that this program needs; a file that is not there is made
    Up,
    /// Which version is there, and which is needed; exit code 1 if they differ
    Status,
    /// Print the SQL that makes the tables in an empty database, for those who run it themselves
    Print,
    /// Print the SQL that gives a PostgreSQL role what a running program needs, and nothing more
    Grants {
        /// The role
        role: String,
    },
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let (target, output) = (Target::of(common)?, common.output());
    match &options.action {
        Action::Up => up(&target, output).await,
        Action::Status => status(&target, output).await,
        Action::Print => print(&target.migration_sql()?, output),
        Action::Grants { role } => print(&target.grants_sql(role)?, output),
    }
}

async fn up(target: &Target, output: Output) -> Result<ExitCode> {
    let opened = target.open_or_create(For::Acting).await?;
    let (from, _) = opened.schema_version().await?;
    opened.migrate().await?;
    let (version, _) = opened.schema_version().await?;
    output.object(&json!({ "from": from, "version": version }))?;
    let shown = target.shown();
    match from {
        _ if from == version => output.say(format_args!("{shown} has version {version} already"))?,
        0 => output.say(format_args!("{shown} has the tables now, in version {version}"))?,
        _ => output.say(format_args!("{shown} went from version {from} to {version}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(target: &Target, output: Output) -> Result<ExitCode> {
    let (version, needed) = target.open(For::Looking).await?.schema_version().await?;
    output.object(&json!({ "version": version, "needed": needed, "current": version == needed }))?;
    let shown = target.shown();
    let what_to_do = match version {
        _ if version == needed => {
            output.say(format_args!("{shown} has version {version}, as needed"))?;
            return Ok(ExitCode::SUCCESS);
        }
        0 => {
            format!("{shown} has no Oncebox tables, and version {needed} is needed: run `oncebox migrate up`")
        }
        _ if version < needed => {
            format!("{shown} has version {version}, and {needed} is needed: run `oncebox migrate up`")
        }
        _ => format!("{shown} has version {version}, and this program knows {needed}: update it"),
    };
    output.say(what_to_do)?;
    Ok(ExitCode::FAILURE)
}

fn print(sql: &str, output: Output) -> Result<ExitCode> {
    match output.json {
        true => output.object(&json!({ "sql": sql }))?,
        false => output.text(sql)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Target {
    fn migration_sql(&self) -> Result<String> {
        Ok(if self.is_sqlite() { SqliteStore::migration_sql() } else { self.unconnected()?.migration_sql() })
    }

    fn grants_sql(&self, role: &str) -> Result<String> {
        if self.is_sqlite() {
            return Err(Usage(
                "SQLite has no roles: name a PostgreSQL database by --store postgres://, for its kind only"
                    .into(),
            )
            .into());
        }
        Ok(self.unconnected()?.grants_sql(role))
    }

    /// A store that knows its schema, and no server.
    fn unconnected(&self) -> Result<PostgresStore> {
        if !self.is_postgres() {
            return Err(Usage(format!(
                "{:?} names no database: write sqlite://FILE or postgres://USER@HOST/DATABASE",
                self.shown()
            ))
            .into());
        }
        let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new());
        Ok(PostgresStore::new(pool).with_schema(self.schema_name())?)
    }
}
