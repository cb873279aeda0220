//! Tests without their server: a developer's machine skips them with a message, CI fails.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file to which a skipped test appends its line, so that a summary can count them.
pub const SKIPPED: &str = "ONCEBOX_SKIPPED";

/// Whether this runs in CI, where no test may be skipped.
#[must_use]
pub fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// Records that `test` is skipped and why; the caller returns then.
///
/// # Panics
///
/// Where `CI` is `true`: a check that did not happen must not look like one that passed.
#[allow(clippy::print_stderr, reason = "a skipped test must tell the person who runs it")]
pub fn skip_or_fail(test: &str, why: &str) {
    assert!(!in_ci(), "{test} cannot run: {why}");
    eprintln!("SKIPPED: {test}: {why}");
    if let Some(path) = env::var_os(SKIPPED) {
        let line = format!("{test}: {why}\n");
        // One write of one line, since many test processes append at the same time.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            panic!("cannot note the skipped test {test} in {}: {error}", path.display());
        }
    }
}
