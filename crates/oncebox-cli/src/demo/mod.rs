//! `oncebox demo`.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Common;

/// What to show.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {}

pub(crate) async fn run(_common: &Common, _options: Options) -> Result<ExitCode> {
    anyhow::bail!("not there yet")
}
