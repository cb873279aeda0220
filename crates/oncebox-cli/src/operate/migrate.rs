//! `oncebox migrate`: creates, upgrades and describes the tables.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::{PostgresStore, SqliteStore};
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::cli::CommonArgs;
use crate::exit::Usage;
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose};

/// Options of `migrate`.
#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    action: MigrateAction,
}

#[derive(Debug, Subcommand)]
enum MigrateAction {
    /// Create the tables, or upgrade them to the version that this program needs; creates a missing file
    Up,
    /// Show the present and the required schema version; exit code 1 if they differ
    Status,
    /// Print the SQL that creates the tables in an empty database
    Print,
    /// Print the SQL that gives a PostgreSQL role the privileges of a running program, and no others
    Grants {
        /// The role
        role: String,
    },
}

pub(crate) async fn run(common: &CommonArgs, options: &MigrateArgs) -> Result<ExitCode> {
    let (target, output) = (DatabaseTarget::of(common)?, common.output());
    match &options.action {
        MigrateAction::Up => up(&target, output).await,
        MigrateAction::Status => status(&target, output).await,
        MigrateAction::Print => print(&target.migration_sql()?, output),
        MigrateAction::Grants { role } => print(&target.grants_sql(role)?, output),
    }
}

async fn up(target: &DatabaseTarget, output: CommandOutput) -> Result<ExitCode> {
    let opened = target.open_or_create(OpenPurpose::Act).await?;
    let (from, _) = opened.schema_version().await?;
    opened.migrate().await?;
    let (version, _) = opened.schema_version().await?;
    output.object(&json!({ "from": from, "version": version }))?;
    let url = target.redacted_url();
    match from {
        _ if from == version => output.line(format_args!("{url} already has schema version {version}"))?,
        0 => output.line(format_args!("{url} has new tables with schema version {version}"))?,
        _ => output.line(format_args!("{url} is upgraded from schema version {from} to {version}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(target: &DatabaseTarget, output: CommandOutput) -> Result<ExitCode> {
    let (version, required) = target.open(OpenPurpose::Read).await?.schema_version().await?;
    output.object(&json!({ "version": version, "required": required, "current": version == required }))?;
    let url = target.redacted_url();
    let problem = match version {
        _ if version == required => {
            output.line(format_args!("{url} has schema version {version}, as required"))?;
            return Ok(ExitCode::SUCCESS);
        }
        0 => {
            format!("{url} has no Oncebox tables: run `oncebox migrate up`")
        }
        _ if version < required => {
            format!(
                "{url} has schema version {version}, but {required} is required: run `oncebox migrate up`"
            )
        }
        _ => format!(
            "{url} has schema version {version}, but this program supports {required}: update the program"
        ),
    };
    output.line(problem)?;
    Ok(ExitCode::FAILURE)
}

fn print(sql: &str, output: CommandOutput) -> Result<ExitCode> {
    match output.json {
        true => output.object(&json!({ "sql": sql }))?,
        false => output.text(sql)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl DatabaseTarget {
    fn migration_sql(&self) -> Result<String> {
        Ok(if self.is_sqlite() { SqliteStore::migration_sql() } else { self.unconnected()?.migration_sql() })
    }

    fn grants_sql(&self, role: &str) -> Result<String> {
        if self.is_sqlite() {
            return Err(Usage(
                "SQLite has no roles, so there is nothing to grant: select PostgreSQL with --store postgres://".into(),
            )
            .into());
        }
        Ok(self.unconnected()?.grants_sql(role))
    }

    /// A store without a connection, for printing SQL.
    fn unconnected(&self) -> Result<PostgresStore> {
        if !self.is_postgres() {
            return Err(Usage(self.invalid_url()).into());
        }
        // A lazy pool never connects, because printing runs no statement.
        let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new());
        Ok(PostgresStore::new(pool).with_schema(self.schema_name())?)
    }
}
