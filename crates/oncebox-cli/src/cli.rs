//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory, Parser, Subcommand};

use oncebox::Operator;

use crate::exit::Usage;
use crate::output::CommandOutput;
use crate::{demo, operate, serve};

/// Makes every message take effect once
///
/// `oncebox serve` is a gateway: it accepts messages over HTTP, stores each one once, and delivers them to your services until
/// they succeed. The other commands show what is in the database, and change it.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 database unavailable, 4 not found"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(subcommand)]
    command: Command,
}

/// The options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommonArgs {
    /// The database: `sqlite://FILE` or `postgres://USER@HOST/DATABASE` [default: the configuration's, otherwise
    /// sqlite://oncebox.db; for demo a temporary file]
    // The help does not show the variable's value: the URL may contain a password.
    #[arg(long, global = true, value_name = "URL", env = "ONCEBOX_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// The schema on PostgreSQL [default: oncebox]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// The configuration file [default: oncebox.toml, if it exists]
    #[arg(long, short, global = true, value_name = "FILE", env = "ONCEBOX_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON: one object, or one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The operator's name in the audit [default: the logged-in user]
    #[arg(long, global = true, value_name = "NAME", env = "ONCEBOX_OPERATOR")]
    operator: Option<String>,
}

impl CommonArgs {
    /// The operator: as given, otherwise the logged-in user.
    pub(crate) fn operator(&self) -> Result<Operator> {
        let named = |variable: &str| std::env::var(variable).ok().filter(|user| !user.is_empty());
        let logged_in = || named("USER").or_else(|| named("LOGNAME"));
        // Containers often have neither variable.
        let number = || format!("user {}", rustix::process::getuid().as_raw());
        let name = self.operator.clone().or_else(logged_in).unwrap_or_else(number);
        Operator::new(name).map_err(|error| Usage(error.to_string()).into())
    }

    /// The form of the output.
    pub(crate) fn output(&self) -> CommandOutput {
        CommandOutput { json: self.json }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Accept messages over HTTP, store each one once, and deliver them
    Serve(serve::ServeArgs),
    /// Show handlers, lag, tasks, dead letters and processes
    Status(operate::status::StatusArgs),
    /// List handlers; pause, resume, replay, rename or remove one
    Handlers(operate::handlers::HandlersArgs),
    /// List stored messages, or show one
    Messages(operate::messages::MessagesArgs),
    /// List dead letters; show, retry, edit, resolve or discard them
    Dead(operate::dead::DeadArgs),
    /// Show the outbox and its relays; list, show, retry, discard or replay messages
    Outbox(operate::outbox::OutboxArgs),
    /// Show the sources that a running gateway takes from brokers
    Sources(operate::sources::SourcesArgs),
    /// List actions of operators, newest first
    Audit(operate::audit::AuditArgs),
    /// Accept messages from a file or standard input, one per line
    Accept(operate::accept::AcceptArgs),
    /// Publish messages from files or standard input into the outbox, one per line
    Publish(operate::publish::PublishArgs),
    /// Run the handlers of the configuration, without the gateway
    Work(operate::work::WorkArgs),
    /// Create, upgrade or describe the tables
    Migrate(operate::migrate::MigrateArgs),
    /// Remove expired messages and markers now
    Prune(operate::prune::PruneArgs),
    /// Check for risks of loss, repetition and delay, with advice
    Doctor(operate::doctor::DoctorArgs),
    /// Show rates, lag and dead letters, refreshed
    Top(operate::top::TopArgs),
    /// Prove the promise: duplicates, lost acknowledgements, kill -9, and an audit
    Demo(demo::DemoArgs),
    /// A worker process of the demo
    #[command(name = demo::WORKER_COMMAND, hide = true)]
    DemoWorker,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Cli {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let common = self.common;
        match self.command {
            Command::Serve(options) => serve::run(&common, &options).await,
            Command::Status(options) => operate::status::run(&common, &options).await,
            Command::Handlers(options) => operate::handlers::run(&common, &options).await,
            Command::Messages(options) => operate::messages::run(&common, &options).await,
            Command::Dead(options) => operate::dead::run(&common, &options).await,
            Command::Outbox(options) => operate::outbox::run(&common, &options).await,
            Command::Sources(options) => operate::sources::run(&common, &options).await,
            Command::Audit(options) => operate::audit::run(&common, &options).await,
            Command::Accept(options) => operate::accept::run(&common, &options).await,
            Command::Publish(options) => operate::publish::run(&common, &options).await,
            Command::Work(options) => operate::work::run(&common, &options).await,
            Command::Migrate(options) => operate::migrate::run(&common, &options).await,
            Command::Prune(options) => operate::prune::run(&common, &options).await,
            Command::Doctor(options) => operate::doctor::run(&common, &options).await,
            Command::Top(options) => operate::top::run(&common, &options).await,
            Command::Demo(options) => demo::run(&common, options).await,
            Command::DemoWorker => demo::worker::run().await,
            Command::Completions { shell } => {
                let mut script = Vec::new();
                // Into memory first: this generator panics if a pipe is closed.
                clap_complete::generate(shell, &mut visible(), "oncebox", &mut script);
                common.output().text(&String::from_utf8_lossy(&script))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// The commands without the hidden ones, which completions would offer too.
fn visible() -> clap::Command {
    let all = Cli::command();
    let shown: Vec<clap::Command> =
        all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let visible = clap::Command::new("oncebox").version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    visible.disable_help_subcommand(true).args(all.get_arguments().cloned()).subcommands(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_offer_all_visible_commands() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut visible(), "oncebox", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("serve") && script.contains("--accept-only") && script.contains("--store"));
        assert!(
            script.contains("publish") && script.contains("--order-pointer") && script.contains("parked")
        );
        assert!(!script.contains(demo::WORKER_COMMAND), "{script}");
    }
}
