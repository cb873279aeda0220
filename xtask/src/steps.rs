//! Named steps: run one after the other, timed, and summed up at the end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::future::Future;
use std::iter;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox_servers::process::{OwnedProcess, Signal, describe};

use crate::interrupt::{Interrupt, Interrupted};

// Longer than the test runner gives its tests to end after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// The steps so far, and their outcomes.
#[derive(Debug)]
pub(crate) struct Steps {
    interrupt: Interrupt,
    done: Vec<Done>,
    skipped_tests: BTreeSet<String>,
}

#[derive(Debug)]
struct Done {
    name: String,
    outcome: StepOutcome,
    took: Duration,
}

#[derive(Debug)]
enum StepOutcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Steps {
    pub(crate) fn new(interrupt: Interrupt) -> Steps {
        Steps { interrupt, done: Vec::new(), skipped_tests: BTreeSet::new() }
    }

    /// Runs a command to its end. Returns whether it passed.
    pub(crate) async fn run(&mut self, name: &str, command: Command) -> Result<bool, Interrupted> {
        self.run_within(name, command, Duration::MAX).await
    }

    /// Runs a command that has to end by itself within `limit`. Returns whether it passed.
    pub(crate) async fn run_within(
        &mut self,
        name: &str,
        command: Command,
        limit: Duration,
    ) -> Result<bool, Interrupted> {
        let line = command_line(&command);
        let passed = self.perform(name, &line, run_to_the_end(command, limit)).await?;
        Ok(passed.is_some())
    }

    /// Runs `work`. Returns its result if it passed.
    pub(crate) async fn perform<T>(
        &mut self,
        name: &str,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>, Interrupted> {
        println!("\n==> {name}: {what}");
        let start = Instant::now();
        let result = tokio::select! {
            // A signal that arrived during the step before counts first.
            biased;
            () = self.interrupt.received() => Err(Interrupted),
            result = work => Ok(result),
        };
        let took = start.elapsed();
        let (outcome, result) = match result {
            Ok(Ok(value)) => (StepOutcome::Passed, Ok(Some(value))),
            Ok(Err(error)) => (StepOutcome::Failed(format!("{error:#}")), Ok(None)),
            Err(Interrupted) => (StepOutcome::Failed("interrupted".into()), Err(Interrupted)),
        };
        self.record(Done { name: name.into(), outcome, took });
        result
    }

    /// Records a step that could not start.
    pub(crate) fn fail(&mut self, name: &str, why: String) {
        println!("\n==> {name}");
        self.record(Done { name: name.into(), outcome: StepOutcome::Failed(why), took: Duration::ZERO });
    }

    /// Records a skipped step.
    pub(crate) fn skip(&mut self, name: &str, why: String) {
        println!("\n==> {name}");
        self.record(Done { name: name.into(), outcome: StepOutcome::Skipped(why), took: Duration::ZERO });
    }

    /// Records skipped tests, one line each.
    pub(crate) fn skip_tests(&mut self, lines: &str) {
        self.skipped_tests.extend(lines.lines().map(str::to_owned));
    }

    pub(crate) fn all_passed(&self) -> bool {
        !self.done.iter().any(|done| matches!(done.outcome, StepOutcome::Failed(_)))
    }

    pub(crate) fn print_summary(&self) {
        println!("\n==> summary");
        for done in &self.done {
            println!("{}", done.line());
        }
        if !self.skipped_tests.is_empty() {
            println!("{} tests were skipped:", self.skipped_tests.len());
            for line in &self.skipped_tests {
                println!("  {line}");
            }
        }
        println!("{}", self.verdict());
    }

    fn verdict(&self) -> &'static str {
        let skipped_steps = self.done.iter().any(|done| matches!(done.outcome, StepOutcome::Skipped(_)));
        match self.all_passed() {
            false => "FAILED",
            true if skipped_steps || !self.skipped_tests.is_empty() => {
                "passed, BUT SOME STEPS OR TESTS WERE SKIPPED"
            }
            true => "all passed",
        }
    }

    fn record(&mut self, done: Done) {
        println!("<== {}", done.line().trim_start());
        self.done.push(done);
    }
}

impl Done {
    fn line(&self) -> String {
        let Done { name, outcome, took } = self;
        let (word, why) = match outcome {
            StepOutcome::Passed => ("passed", ""),
            StepOutcome::Skipped(why) => ("SKIPPED", why.as_str()),
            StepOutcome::Failed(why) => ("FAILED", why.as_str()),
        };
        let colon = if why.is_empty() { "" } else { ": " };
        format!("  {word:<7} {:>7.1} s  {name}{colon}{why}", took.as_secs_f64())
    }
}

async fn run_to_the_end(command: Command, limit: Duration) -> Result<()> {
    let ended = tokio::time::timeout(limit, end_of(command)).await;
    let status = ended.with_context(|| format!("did not end within {} s", limit.as_secs()))??;
    if !status.success() {
        bail!("{}", describe(status));
    }
    Ok(())
}

/// Runs a command to its end. Dropping the future stops the command.
pub(crate) async fn end_of(mut command: Command) -> Result<ExitStatus> {
    // In its own process group, a command that reads from the terminal would be stopped. None of them needs input.
    command.stdin(Stdio::null());
    let mut running = RunningStep(OwnedProcess::spawn(&mut command, Signal::TERM, None)?);
    running.0.wait().await
}

// Stops an interrupted step with SIGTERM, so that its tests can clean up.
struct RunningStep(OwnedProcess);

impl Drop for RunningStep {
    fn drop(&mut self) {
        if let Err(error) = self.0.stop(STOP_GRACE) {
            eprintln!("cannot stop a step: {error:#}");
        }
    }
}

// The command as text, to repeat the step by hand.
fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy);
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_failed_step_does_not_hide_behind_a_later_one() {
        let mut steps = Steps::new(Interrupt::listen().unwrap());
        assert_eq!(steps.run("first", shell("exit 3")).await, Ok(false));
        assert_eq!(steps.run("second", shell("exit 0")).await, Ok(true));
        assert!(!steps.all_passed());
        assert!(steps.done[0].line().ends_with("first: ended with exit code 3"), "{}", steps.done[0].line());
    }

    #[tokio::test]
    async fn a_step_that_does_not_end_fails() {
        let mut steps = Steps::new(Interrupt::listen().unwrap());
        let limit = Duration::from_millis(50);
        assert_eq!(steps.run_within("endless", shell("sleep 3600"), limit).await, Ok(false));
        assert!(steps.done[0].took < Duration::from_secs(600));
    }

    #[test]
    fn a_skipped_step_is_no_failure_and_a_skipped_test_counts_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        let mut steps = Steps::new(Interrupt::listen().unwrap());
        steps.skip("PostgreSQL", "not installed".into());
        steps.skip_tests("b: no server\na: no server\nb: no server\n");
        assert!(steps.all_passed());
        assert_eq!(steps.skipped_tests.len(), 2);
        assert_eq!(steps.verdict(), "passed, BUT SOME STEPS OR TESTS WERE SKIPPED");
    }
}
