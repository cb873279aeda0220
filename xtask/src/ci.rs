//! `cargo xtask ci`: the checks that every change must pass.

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
    test::run(workspace, &test::TestOptions::default(), steps).await
}

struct CiCheck {
    name: &'static str,
    command: Command,
    fix: &'static str,
}

fn checks(workspace: &Workspace) -> [CiCheck; 4] {
    let cargo = |arguments: &[&str]| {
        let mut command = workspace.cargo();
        command.args(arguments);
        command
    };
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    // By default, broken links in doc comments are only warnings.
    docs.env("RUSTDOCFLAGS", "-D warnings");
    [
        CiCheck {
            name: "formatting",
            command: cargo(&["fmt", "--all", "--check"]),
            fix: "run `cargo fmt --all`",
        },
        CiCheck {
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
        CiCheck {
            name: "docs",
            command: docs,
            fix: "correct the doc comments named above; see them with `cargo doc --workspace --no-deps --open`",
        },
        CiCheck {
            name: "packages",
            // Building from the packages takes minutes; the release checklist has it.
            command: package::command(workspace, package::PackageOptions { no_verify: true }),
            fix: "give the crate named above what a published crate needs; `cargo xtask package` builds all of them",
        },
    ]
}
