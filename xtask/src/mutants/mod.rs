//! `cargo xtask mutants`: does a test fail for every way in which the protocol is known to break?
//!
//! One build has all mutants in it; an environment variable switches one on. A mutant is caught if a test
//! fails in each of its groups of tests. The same run shows that these tests pass without it.

mod nextest;
mod table;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use oncebox_servers::postgres::PostgresServer;

use crate::interrupt::Interrupted;
use crate::postgres::provide;
use crate::provision::Provision;
use crate::steps::Steps;
use crate::workspace::Workspace;
use nextest::{MutantRun, Nextest};
use table::{MUTANTS, Mutant};

/// Which mutants to try.
#[derive(clap::Args, Debug)]
pub(crate) struct MutantsOptions {
    /// List the mutants and exit
    #[arg(long)]
    pub(crate) list: bool,
    /// Do not run the whole suite without a mutant first
    #[arg(long)]
    skip_unmutated: bool,
    /// Do not install PostgreSQL if it is missing
    #[arg(long)]
    no_install: bool,
    /// Try only these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

pub(crate) fn print_list() {
    for Mutant { name, breaks, tests } in MUTANTS {
        println!("{name}\n    {breaks}");
        for tests in *tests {
            println!("    caught by {tests}");
        }
    }
}

pub(crate) async fn run(
    workspace: &Workspace,
    options: &MutantsOptions,
    steps: &mut Steps,
) -> Result<(), Interrupted> {
    let mutants = match chosen(&options.names) {
        Ok(mutants) if workspace.has_nextest() => mutants,
        Ok(_) => {
            steps.fail(
                "mutants",
                "cargo-nextest is missing: run `cargo install cargo-nextest --locked`".into(),
            );
            return Ok(());
        }
        Err(error) => {
            steps.fail("mutants", format!("{error:#}"));
            return Ok(());
        }
    };
    let mut server = match provide(!options.no_install, steps).await? {
        Provision::Running(server) => server,
        Provision::Missing => {
            steps.fail("mutants", "PostgreSQL is missing: half of the mutants need it".into());
            return Ok(());
        }
        Provision::Refused => return Ok(()),
    };
    // No `?` here: the server has to be stopped after an interrupt too.
    let result = run_on(workspace, options, &server, &mutants, steps).await;
    if let Err(error) = PostgresServer::stop(&mut server) {
        steps.fail("stopping PostgreSQL", format!("{error:#}"));
    }
    result
}

async fn run_on(
    workspace: &Workspace,
    options: &MutantsOptions,
    server: &PostgresServer,
    mutants: &[&Mutant],
    steps: &mut Steps,
) -> Result<(), Interrupted> {
    let nextest = Nextest::new(workspace, server.url());
    if !steps.run("build with mutants", nextest.build()).await? {
        return Ok(());
    }
    // A test that fails without a mutant would count as catching every mutant.
    if !options.skip_unmutated && !steps.run("tests without a mutant", nextest.unmutated()).await? {
        return Ok(());
    }
    let scratch = match tempfile::Builder::new().prefix("oncebox-mutants-").tempdir() {
        Ok(scratch) => scratch,
        Err(error) => {
            steps.fail("mutants", format!("creating a temporary folder: {error}"));
            return Ok(());
        }
    };
    let what = format!("{} mutants, one after the other", mutants.len());
    let log = scratch.path().join("log");
    steps.perform("mutants", &what, try_all(&nextest, mutants, &log)).await.map(drop)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Mutant>> {
    if names.is_empty() {
        return Ok(MUTANTS.iter().collect());
    }
    let find = |name: &String| match MUTANTS.iter().find(|mutant| mutant.name == name) {
        Some(mutant) => Ok(mutant),
        None => bail!("there is no mutant {name:?}: `cargo xtask mutants --list` lists them"),
    };
    names.iter().map(find).collect()
}

async fn try_all(nextest: &Nextest<'_>, mutants: &[&Mutant], log: &Path) -> Result<()> {
    let (mut caught, mut missed, mut untried) = (0, 0, 0);
    for mutant in mutants {
        let Mutant { name, breaks, .. } = mutant;
        match try_one(nextest, mutant, log).await {
            Ok(Caught::By(tests)) => {
                caught += 1;
                println!("caught  {name}  by {}", tests.join(", "));
            }
            Ok(Caught::NotBy(tests)) => {
                missed += 1;
                println!("missed  {name}  by {tests}\n        {breaks}");
            }
            Err(error) => {
                untried += 1;
                println!("ERROR   {name}  {error:#}");
            }
        }
    }
    println!("{caught} caught, {missed} missed");
    ensure!(missed == 0 && untried == 0, "{missed} missed, {untried} not tried");
    Ok(())
}

enum Caught {
    /// The tests that failed, one of each group.
    By(Vec<String>),
    /// A group of tests in which none failed.
    NotBy(&'static str),
}

async fn try_one(nextest: &Nextest<'_>, mutant: &Mutant, log: &Path) -> Result<Caught> {
    let mut failed = Vec::new();
    for &tests in mutant.tests {
        match nextest.run_mutated(mutant.name, tests, log).await? {
            MutantRun::Passed => return Ok(Caught::NotBy(tests)),
            MutantRun::Failed(test) => failed.push(test),
        }
    }
    Ok(Caught::By(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_mutants_and_unknown_names_are_reported() {
        assert_eq!(chosen(&[]).unwrap().len(), MUTANTS.len());
        assert_eq!(chosen(&["ack_before_commit".to_owned()]).unwrap().len(), 1);
        let error = chosen(&["ack".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("there is no mutant \"ack\""), "{error}");
    }
}
