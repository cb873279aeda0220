//! What the tests ask about processes.

use std::env;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

/// Whether the process still does anything; one that only waits to be reaped does not.
pub(crate) fn runs(pid: i32) -> bool {
    let exists = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok());
    let zombie = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    exists && !zombie
}

/// Polls until `condition` holds.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !condition() {
        assert!(Instant::now() < deadline, "not within five minutes: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

const ROLE: &str = "ONCEBOX_SERVERS_TEST_ROLE";

/// Whether this process was started by [`another_process`].
pub(crate) fn is_another_process() -> bool {
    env::var_os(ROLE).is_some()
}

/// The same test once more in a process of its own, for what a test cannot do to itself.
pub(crate) fn another_process(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a test knows its program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, "1");
    command
}
