//! The PostgreSQL server that the tests share.

use std::path::PathBuf;

use anyhow::{Result, bail};
use oncebox_servers::apt;
use oncebox_servers::postgres::{self, PACKAGE, POSTGRES_BIN, PostgresOptions, PostgresServer};
use oncebox_servers::skip;

use crate::interrupt::Interrupted;
use crate::steps::Steps;

const STEP: &str = "PostgreSQL";

/// Whether tests have a server.
#[derive(Debug)]
pub(crate) enum Provision {
    Running(PostgresServer),
    /// Its tests are skipped.
    Missing,
    /// In CI, where nothing may be skipped: no further step runs.
    Refused,
}

/// Starts a private server. Installs PostgreSQL first if it is missing and installing is allowed.
pub(crate) async fn provide(may_install: bool, steps: &mut Steps) -> Result<Provision, Interrupted> {
    let bin = match postgres::find() {
        Ok(Some(bin)) => bin,
        Ok(None) => match install(may_install) {
            Ok(bin) => bin,
            Err(error) => return Ok(do_without(&error, steps)),
        },
        // A wrong ONCEBOX_POSTGRES_BIN is a mistake to correct, no reason to skip.
        Err(error) => {
            steps.fail(STEP, format!("{error:#}"));
            return Ok(without());
        }
    };
    let what = format!("starting a private server from {}", bin.display());
    let start = PostgresServer::start(PostgresOptions::default().bin(bin));
    Ok(steps.perform(STEP, &what, start).await?.map_or_else(without, Provision::Running))
}

fn install(may_install: bool) -> Result<PathBuf> {
    if !may_install {
        bail!(
            "its server programs are not installed, and --no-install is set: install the package \
             `{PACKAGE}`, or set {POSTGRES_BIN} to the folder with initdb and postgres"
        );
    }
    if apt::is_available() {
        println!("\n==> PostgreSQL is not installed: installing the distribution's package `{PACKAGE}`");
    }
    postgres::install()
}

fn do_without(error: &anyhow::Error, steps: &mut Steps) -> Provision {
    if skip::in_ci() {
        steps.fail(STEP, format!("{error:#} (with CI=true nothing may be skipped)"));
    } else {
        eprintln!("\n{0}\nPOSTGRESQL IS MISSING: ITS TESTS ARE SKIPPED\n{error:#}\n{0}", "!".repeat(72));
        steps.skip(STEP, format!("{error:#}"));
    }
    without()
}

// In CI every test that needs the server would fail for the same reason.
fn without() -> Provision {
    if skip::in_ci() { Provision::Refused } else { Provision::Missing }
}
