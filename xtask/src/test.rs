//! `cargo xtask test`: all tests, the examples, a short torture run and the quick start.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use oncebox_servers::database::TEST_POSTGRES;
use oncebox_servers::postgres::PostgresServer;
use oncebox_servers::rabbitmq::{RabbitServer, TEST_RABBITMQ, TestVhost};
use oncebox_servers::skip::SKIPPED;
use tempfile::TempDir;

use crate::interrupt::Interrupted;
use crate::provision::Provision;
use crate::python::{self, TEST_PYTHON};
use crate::quickstart;
use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{postgres, rabbitmq, torture};

/// Asks tests for their full counts instead of a tenth.
const FULL: &str = "ONCEBOX_FULL";

/// Asks an example to try itself out and end.
const SELF_TEST: &str = "ONCEBOX_EXAMPLE_SELF_TEST";

/// One failure must not hide another.
const NO_FAIL_FAST: &str = "--no-fail-fast";

/// The programs of the package `oncebox-examples`.
const EXAMPLES: [&str; 6] = ["webhook", "consumer", "stored", "monolith", "outbox", "two-services"];

/// The time limit for building and running a program that ends by itself within seconds.
const PROGRAM_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Many times longer than the run needs, even on a busy machine.
const TORTURE_LIMIT: Duration = Duration::from_secs(40 * 60);

/// What to test.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct TestOptions {
    /// Run counted tests at their full counts instead of a tenth
    #[arg(long)]
    full: bool,
    /// Do not install PostgreSQL, RabbitMQ, Python and faketime if they are missing
    #[arg(long)]
    no_install: bool,
    /// Run only the tests whose names contain one of these
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

pub(crate) async fn run(
    workspace: &Workspace,
    options: &TestOptions,
    steps: &mut Steps,
) -> Result<(), Interrupted> {
    let python = python::provide(workspace, !options.no_install, steps);
    let mut postgres = match postgres::provide(!options.no_install, steps).await? {
        Provision::Running(server) => Some(server),
        Provision::Missing => None,
        Provision::Refused => return Ok(()),
    };
    let mut rabbitmq = match rabbitmq::provide(!options.no_install, steps).await? {
        Provision::Running(server) => Some(server),
        Provision::Missing => None,
        Provision::Refused => return Ok(()),
    };
    let servers = Servers {
        postgres: postgres.as_ref().map(PostgresServer::url),
        rabbitmq: rabbitmq.as_ref().map(RabbitServer::test_url),
        python,
    };
    // No `?` here: the servers have to be stopped after an interrupt too.
    let result = match TestRun::new(workspace, options, servers) {
        Ok(tests) => tests.run(steps).await,
        Err(error) => {
            steps.fail("tests", format!("{error:#}"));
            Ok(())
        }
    };
    if let Some(Err(error)) = postgres.as_mut().map(PostgresServer::stop) {
        steps.fail("stopping PostgreSQL", format!("{error:#}"));
    }
    if let Some(Err(error)) = rabbitmq.as_mut().map(RabbitServer::stop) {
        steps.fail("stopping RabbitMQ", format!("{error:#}"));
    }
    result
}

/// What the tests share, as far as it is there.
struct Servers {
    /// The address of PostgreSQL.
    postgres: Option<String>,
    /// The address of RabbitMQ.
    rabbitmq: Option<String>,
    /// A Python with drivers for both.
    python: Option<PathBuf>,
}

/// One run of the tests, with the settings and files that they share.
struct TestRun<'a> {
    workspace: &'a Workspace,
    options: &'a TestOptions,
    servers: Servers,
    scratch: TempDir,
}

impl TestRun<'_> {
    fn new<'a>(workspace: &'a Workspace, options: &'a TestOptions, servers: Servers) -> Result<TestRun<'a>> {
        let scratch = tempfile::Builder::new().prefix("oncebox-xtask-").tempdir();
        let scratch = scratch.context("creating a temporary folder")?;
        Ok(TestRun { workspace, options, servers, scratch })
    }

    async fn run(&self, steps: &mut Steps) -> Result<(), Interrupted> {
        let result = self.run_steps(steps).await;
        // Without a file no test was skipped.
        steps.skip_tests(&fs::read_to_string(self.skipped()).unwrap_or_default());
        result
    }

    async fn run_steps(&self, steps: &mut Steps) -> Result<(), Interrupted> {
        steps.run("tests", self.tests()).await?;
        if !self.options.filters.is_empty() {
            return Ok(());
        }
        // A step of its own, because nextest runs no doc tests.
        let doc_tests = self.cargo(&["test", "--workspace", "--all-features", "--doc", NO_FAIL_FAST]);
        steps.run("doc tests", doc_tests).await?;
        for name in EXAMPLES {
            let step = format!("example {name}");
            match self.example(name) {
                Ok(command) => _ = steps.run_within(&step, command, PROGRAM_LIMIT).await?,
                Err(error) => steps.fail(&step, format!("{error:#}")),
            }
        }
        // Without the server, the step for it says so.
        if let Some(url) = &self.servers.rabbitmq {
            match self.example_over_rabbitmq(url).await {
                Ok(command) => _ = steps.run_within("example over RabbitMQ", command, PROGRAM_LIMIT).await?,
                Err(error) => steps.fail("example over RabbitMQ", format!("{error:#}")),
            }
        }
        if steps.run("building the torture", torture::build_for_tests(self.workspace)).await? {
            let may_install = !self.options.no_install;
            let torture = torture::short(self.workspace, may_install);
            steps.run_within("torture", torture, TORTURE_LIMIT).await?;
        }
        match self.quick_start() {
            Ok(command) => _ = steps.run_within("README's quick start", command, PROGRAM_LIMIT).await?,
            Err(error) => steps.fail("README's quick start", format!("{error:#}")),
        }
        Ok(())
    }

    fn tests(&self) -> Command {
        let mut command = if self.workspace.has_nextest() {
            self.cargo(&["nextest", "run", "--workspace", "--all-features", NO_FAIL_FAST])
        } else {
            self.cargo(&["test", "--workspace", "--all-features", "--all-targets", NO_FAIL_FAST])
        };
        if !self.options.filters.is_empty() {
            command.arg("--").args(&self.options.filters);
        }
        command
    }

    // In a folder of its own, since an example may write files where it runs.
    fn example(&self, name: &str) -> Result<Command> {
        let folder = self.folder(name)?;
        let mut command = self.cargo(&["run", "-q", "-p", "oncebox-examples", "--bin", name]);
        command.arg("--manifest-path").arg(self.workspace.root().join("Cargo.toml"));
        command.env(SELF_TEST, "1").current_dir(folder);
        Ok(command)
    }

    /// Two services over RabbitMQ instead of HTTP, in a virtual host of their own.
    async fn example_over_rabbitmq(&self, url: &str) -> Result<Command> {
        let vhost = TestVhost::create_at(url).await?;
        let mut command = self.cargo(&["run", "-q", "-p", "oncebox-examples", "--bin", "two-services"]);
        command.args(["--", &vhost.url()]).env(SELF_TEST, "1").current_dir(self.workspace.root());
        Ok(command)
    }

    fn quick_start(&self) -> Result<Command> {
        let folder = self.folder("quickstart")?;
        quickstart::write_package(self.workspace.root(), &folder)?;
        let mut command = self.cargo(&["run", "-q"]);
        // The scratch folder is deleted after the run, and a build in it would be lost.
        command.env("CARGO_TARGET_DIR", self.workspace.target().join("quickstart")).current_dir(folder);
        Ok(command)
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.workspace.cargo();
        command.args(arguments).env(SKIPPED, self.skipped());
        let urls = [(TEST_POSTGRES, &self.servers.postgres), (TEST_RABBITMQ, &self.servers.rabbitmq)];
        for (name, url) in urls {
            match url {
                Some(url) => command.env(name, url),
                // Without its own server, the run must not use one from the caller's environment.
                None => command.env_remove(name),
            };
        }
        if let Some(python) = &self.servers.python {
            command.env(TEST_PYTHON, python);
        }
        if self.options.full {
            command.env(FULL, "1");
        }
        command
    }

    fn skipped(&self) -> PathBuf {
        self.scratch.path().join("skipped")
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.scratch.path().join(name);
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    }
}
