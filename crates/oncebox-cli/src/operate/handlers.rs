//! `oncebox handlers`.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Common;

/// What to do.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {}

pub(crate) async fn run(_common: &Common, _options: &Options) -> Result<ExitCode> {
    anyhow::bail!("not there yet")
}
