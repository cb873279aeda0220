//! A server that the tests share, or the reason why there is none.

use oncebox_servers::skip;

use crate::steps::Steps;

/// Whether tests have a server.
#[derive(Debug)]
pub(crate) enum Provision<S> {
    Running(S),
    /// Its tests are skipped.
    Missing,
    /// In CI, where nothing may be skipped: no further step runs.
    Refused,
}

impl<S> Provision<S> {
    /// Records why the server of this step is missing.
    pub(crate) fn do_without(step: &str, error: &anyhow::Error, steps: &mut Steps) -> Self {
        if skip::in_ci() {
            steps.fail(step, format!("{error:#} (with CI=true nothing may be skipped)"));
        } else {
            let name = step.to_uppercase();
            eprintln!("\n{0}\n{name} IS MISSING: ITS TESTS ARE SKIPPED\n{error:#}\n{0}", "!".repeat(72));
            steps.skip(step, format!("{error:#}"));
        }
        Self::without()
    }

    /// In CI every test that needs the server would fail for the same reason.
    pub(crate) fn without() -> Self {
        if skip::in_ci() { Self::Refused } else { Self::Missing }
    }
}
