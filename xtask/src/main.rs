//! The project's own commands: `cargo xtask <command>`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that speaks to a person")]

mod api;
#[cfg(test)]
mod architecture;
mod bench;
mod ci;
mod interrupt;
#[cfg(test)]
mod links;
mod mutants;
mod package;
mod pictures;
mod postgres;
mod provision;
mod python;
mod quickstart;
mod rabbitmq;
mod readme;
#[cfg(test)]
mod statements;
mod steps;
mod test;
mod torture;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use interrupt::{Interrupt, Interrupted};
use steps::Steps;
use workspace::Workspace;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "The project's own commands")]
enum XtaskCommand {
    /// Run every test against a private PostgreSQL server, the examples and the README's quick start
    Test(test::TestOptions),
    /// Check formatting, lints and docs, then do all that `test` does
    Ci,
    /// Break the protocol in one place after the other, and see whether the tests notice
    Mutants(mutants::MutantsOptions),
    /// Measure Oncebox beside other inboxes and beside none: `bench inline`
    Bench(bench::BenchOptions),
    /// Write the public API of the published crates to docs/api, which a test compares
    Api,
    /// Package every published crate and build it from its package
    Package(package::PackageOptions),
    /// Draw the terminal pictures in docs/pictures from the program's own output
    Pictures,
    /// Kill processes and databases under load and count what is lost or doubled: `torture --help`
    Torture(torture::TortureOptions),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let command = XtaskCommand::parse();
    let workspace = Workspace::locate()?;
    let mut steps = Steps::new(Interrupt::listen()?);
    let result = match command {
        XtaskCommand::Test(options) => test::run(&workspace, &options, &mut steps).await,
        XtaskCommand::Ci => ci::run(&workspace, &mut steps).await,
        XtaskCommand::Mutants(options) if options.list => {
            mutants::print_list();
            return Ok(ExitCode::SUCCESS);
        }
        XtaskCommand::Mutants(options) => mutants::run(&workspace, &options, &mut steps).await,
        XtaskCommand::Api => {
            api::write(workspace.root())?;
            return Ok(ExitCode::SUCCESS);
        }
        XtaskCommand::Pictures => {
            pictures::run(&workspace)?;
            return Ok(ExitCode::SUCCESS);
        }
        XtaskCommand::Package(options) => {
            steps.run("packages", package::command(&workspace, options)).await.map(drop)
        }
        XtaskCommand::Bench(options) => match bench::run(&workspace, &options)? {},
        XtaskCommand::Torture(options) => match torture::run(&workspace, &options)? {},
    };
    steps.print_summary();
    Ok(match result {
        // The exit code that shells use for a program ended by Ctrl-C.
        Err(Interrupted) => ExitCode::from(130),
        Ok(()) if steps.all_passed() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
    })
}
