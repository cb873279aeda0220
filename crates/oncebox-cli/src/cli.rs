//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory, Parser, Subcommand};

use oncebox::Operator;

use crate::exit::Usage;
use crate::output::Output;
use crate::{demo, operate, serve};

/// Makes every message take effect once
///
/// `oncebox serve` is a gateway: it accepts messages over HTTP, each once, and delivers them to your services until they are
/// done. The other commands look at what is in the database and act on it.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the database does not answer, \
                        4 there is no such thing"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// The database: `sqlite://FILE`, or `postgres://USER@HOST/DATABASE` [default: that of the configuration, else
    /// sqlite://oncebox.db; for demo a temporary file]
    #[arg(long, global = true, value_name = "URL", env = "ONCEBOX_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// The schema on PostgreSQL [default: oncebox]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// The configuration [default: oncebox.toml, if it is there]
    #[arg(long, short, global = true, value_name = "FILE", env = "ONCEBOX_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Answer in JSON: one object, or one a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The name under which actions are written to the audit
    #[arg(long, global = true, value_name = "NAME", env = "ONCEBOX_OPERATOR")]
    operator: Option<String>,
}

impl Common {
    /// Who acts: as said, else the user that is logged in.
    pub(crate) fn operator(&self) -> Result<Operator> {
        let named = |variable: &str| std::env::var(variable).ok().filter(|user| !user.is_empty());
        let logged_in = || named("USER").or_else(|| named("LOGNAME"));
        let number = || format!("user {}", rustix::process::getuid().as_raw());
        let name = self.operator.clone().or_else(logged_in).unwrap_or_else(number);
        Operator::new(name).map_err(|error| Usage(error.to_string()).into())
    }

    /// Where answers go.
    pub(crate) fn output(&self) -> Output {
        Output { json: self.json }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Accept messages over HTTP, each once, and deliver them
    Serve(serve::Options),
    /// How things stand: handlers, lag, tasks, dead letters, processes
    Status(operate::status::Options),
    /// List handlers; pause, resume, replay or remove one
    Handlers(operate::handlers::Options),
    /// List messages, or show one
    Messages(operate::messages::Options),
    /// List dead letters; show, retry, edit or discard them
    Dead(operate::dead::Options),
    /// What operators did, the newest first
    Audit(operate::audit::Options),
    /// Accept messages from a file or standard input, one a line
    Accept(operate::accept::Options),
    /// Run the handlers of the configuration, without the gateway
    Work(operate::work::Options),
    /// Create or update the tables
    Migrate(operate::migrate::Options),
    /// Remove what retention no longer needs, now
    Prune(operate::prune::Options),
    /// Look for what could lose, repeat or delay messages, and say what to do
    Doctor(operate::doctor::Options),
    /// Watch rates, lag and dead letters
    Top(operate::top::Options),
    /// A minute of proof: duplicates, lost acknowledgements, kill -9, and an audit
    Demo(demo::Options),
    /// A process that the demo starts, and kills
    #[command(name = demo::WORKER_COMMAND, hide = true)]
    DemoWorker,
    /// Print a completion script for a shell
    Completions {
        /// Which shell
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
            Command::Audit(options) => operate::audit::run(&common, &options).await,
            Command::Accept(options) => operate::accept::run(&common, &options).await,
            Command::Work(options) => operate::work::run(&common, &options).await,
            Command::Migrate(options) => operate::migrate::run(&common, &options).await,
            Command::Prune(options) => operate::prune::run(&common, &options).await,
            Command::Doctor(options) => operate::doctor::run(&common, &options).await,
            Command::Top(options) => operate::top::run(&common, &options).await,
            Command::Demo(options) => demo::run(&common, options).await,
            Command::DemoWorker => demo::worker::run().await,
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut visible(), "oncebox", &mut script);
                common.output().text(&String::from_utf8_lossy(&script))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// The commands that people see: completions would offer the hidden ones too.
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
    fn completions_offer_what_people_call() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut visible(), "oncebox", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("serve") && script.contains("--accept-only") && script.contains("--store"));
        assert!(!script.contains(demo::WORKER_COMMAND), "{script}");
    }
}
