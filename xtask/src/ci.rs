//! `cargo xtask ci`: what has to hold before a change is taken.

use std::process::Command;

use crate::interrupt::Interrupted;
use crate::package;
use crate::steps::Steps;
use crate::test;
use crate::workspace::Workspace;

pub(crate) async fn run(workspace: &Workspace, steps: &mut Steps) -> Result<(), Interrupted> {
    for check in checks(workspace) {
        if !steps.run(check.name, check.command).await? {
            println!("\nTo fix this: {}", check.fix);
            return Ok(());
        }
    }
    test::run(workspace, &test::Options::default(), steps).await
}

struct Check {
    name: &'static str,
    command: Command,
    fix: &'static str,
}

fn checks(workspace: &Workspace) -> [Check; 4] {
    let cargo = |arguments: &[&str]| {
        let mut command = workspace.cargo();
        command.args(arguments);
        command
    };
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    [
        Check {
            name: "formatting",
            command: cargo(&["fmt", "--all", "--check"]),
            fix: "run `cargo fmt --all`",
        },
        Check {
            name: "lints",
            command: cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--all-features",
                "--",
                "-D",
                "warnings",
            ]),
            fix: "follow the messages above, or try \
                  `cargo clippy --workspace --all-targets --all-features --fix`",
        },
        Check {
            name: "docs",
            command: docs,
            fix: "correct the doc comments named above; see them with `cargo doc --workspace --no-deps --open`",
        },
        Check {
            name: "packages",
            // Building from the packages takes minutes; the release checklist has it.
            command: package::command(workspace, package::Options { no_verify: true }),
            fix: "give the crate named above what a published crate needs; `cargo xtask package` builds all of them",
        },
    ]
}
