//! The test runner, with and without a mutant.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use oncebox_servers::database::TEST_POSTGRES;
use oncebox_servers::process::describe;

use crate::steps::end_of;
use crate::workspace::Workspace;

/// Names the mutant to switch on; the same as in `oncebox-core`.
const MUTANT: &str = "ONCEBOX_MUTANT";

/// The flag that compiles the mutants in.
const CFG: &str = "--cfg oncebox_mutants";

/// The packages with mutants, and the packages that test them.
const PACKAGES: [&str; 4] = ["oncebox-core", "oncebox-sqlite", "oncebox-postgres", "oncebox-tests"];

/// The exit code of nextest if tests have failed and nothing else went wrong.
const TESTS_FAILED: i32 = 100;

/// The words with which nextest begins the line of a failed test.
const FAILURES: [&str; 4] = ["FAIL", "TIMEOUT", "SIG", "ABORT"];

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MutantRun {
    Passed,
    /// The first test that failed.
    Failed(String),
}

/// One build, run in any number of ways.
#[derive(Debug)]
pub(super) struct Nextest<'a> {
    workspace: &'a Workspace,
    postgres_url: String,
}

impl Nextest<'_> {
    pub(super) fn new(workspace: &Workspace, postgres_url: String) -> Nextest<'_> {
        Nextest { workspace, postgres_url }
    }

    /// Builds and runs nothing.
    pub(super) fn build(&self) -> Command {
        self.command(&["--no-run"])
    }

    /// The whole suite as it is.
    pub(super) fn unmutated(&self) -> Command {
        self.command(&["--no-fail-fast", "--status-level", "fail"])
    }

    /// Runs tests with a mutant, up to the first failure. Their output goes to `log`.
    pub(super) async fn run_mutated(&self, mutant: &str, tests: &str, log: &Path) -> Result<MutantRun> {
        let mut command = self.command(&["--profile", "mutants", "--status-level", "fail", "-E", tests]);
        // A file, because a pipe that is not read would fill up and block the tests.
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let and_errors = file.try_clone().context("sharing a file")?;
        command.env(MUTANT, mutant).stdout(file).stderr(and_errors);
        let status = end_of(command).await?;
        let said = fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
        match (status.code(), first_failure(&said)) {
            (Some(0), _) => Ok(MutantRun::Passed),
            (Some(TESTS_FAILED), Some(test)) => Ok(MutantRun::Failed(test)),
            // A failed build, or a filter without tests, must not count as a caught mutant.
            _ => bail!(
                "the mutant {mutant} could not be tried with {tests}: nextest {}\n{said}",
                describe(status)
            ),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.workspace.cargo();
        command.args(["nextest", "run", "--all-features"]);
        command.args(PACKAGES.iter().flat_map(|package| ["--package", package])).args(arguments);
        command.env("RUSTFLAGS", flags(env::var_os("RUSTFLAGS"))).env("CARGO_TARGET_DIR", self.target());
        // A mutant from the caller's environment would also break the run without a mutant.
        command.env(TEST_POSTGRES, &self.postgres_url).env_remove(MUTANT);
        command
    }

    // A folder of its own: with other flags in the same folder, cargo would build everything anew each time.
    fn target(&self) -> PathBuf {
        self.workspace.target().join("mutants")
    }
}

fn flags(given: Option<OsString>) -> OsString {
    let mut flags = given.unwrap_or_default();
    flags.push(" ");
    flags.push(CFG);
    flags
}

// A line such as `FAIL [   0.012s] (1/2) oncebox-sqlite::it in_memory::a_key_is_fresh_once`.
fn first_failure(said: &str) -> Option<String> {
    said.lines().find_map(|line| {
        let (word, rest) = line.trim_start().split_once(" [")?;
        let (_time, test) = rest.split_once("] ")?;
        let test = match test.starts_with('(') {
            true => test.split_once(") ")?.1,
            false => test,
        };
        FAILURES.iter().any(|failure| word.starts_with(failure)).then(|| test.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_named() {
        let said = "    Finished `test` profile [unoptimized] target(s) in 0.1s\n\
             \x20       PASS [   0.002s] (1/3) oncebox-core key::tests::golden\n\
             \x20       FAIL [   0.012s] (2/3) oncebox-sqlite::it in_memory::a_key_is_fresh_once\n\
             \x20    SIGABRT [   0.012s] (3/3) oncebox-core other\n";
        assert_eq!(first_failure(said).as_deref(), Some("oncebox-sqlite::it in_memory::a_key_is_fresh_once"));
        let said = "     TIMEOUT [  60.002s] (  1/  1) oncebox-tests::it worker::waits\n";
        assert_eq!(first_failure(said).as_deref(), Some("oncebox-tests::it worker::waits"));
        assert_eq!(first_failure("     Summary [   0.002s] 1 test run: 1 passed, 2 skipped\n"), None);
    }

    #[test]
    fn flags_that_are_given_are_kept() {
        assert_eq!(flags(None), " --cfg oncebox_mutants");
        assert_eq!(flags(Some("-C debuginfo=0".into())), "-C debuginfo=0 --cfg oncebox_mutants");
    }
}
