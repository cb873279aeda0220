//! `cargo xtask package`: the crates as they will be published.

use std::process::Command;

use crate::workspace::Workspace;

/// Members of the workspace that are never published.
const UNPUBLISHED: [&str; 6] =
    ["oncebox-bench", "oncebox-examples", "oncebox-servers", "oncebox-tests", "oncebox-torture", "xtask"];

/// How far to go.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct PackageOptions {
    /// Only assemble the crates; do not build them from their packages
    #[arg(long)]
    pub(crate) no_verify: bool,
}

/// Assembles each crate that is to be published, in the order of their dependencies, and builds it from its package.
pub(crate) fn command(workspace: &Workspace, options: PackageOptions) -> Command {
    let mut package = workspace.cargo();
    package.args(["package", "--workspace", "--allow-dirty"]);
    for name in UNPUBLISHED {
        package.args(["--exclude", name]);
    }
    if options.no_verify {
        package.arg("--no-verify");
    }
    package
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_crates_that_say_so_are_not_published() {
        let workspace = Workspace::locate().unwrap();
        for folder in ["bench", "examples", "tests", "torture", "xtask"].map(str::to_owned).into_iter().chain(
            std::fs::read_dir(workspace.root().join("crates"))
                .unwrap()
                .map(|entry| format!("crates/{}", entry.unwrap().file_name().to_string_lossy())),
        ) {
            let manifest =
                std::fs::read_to_string(workspace.root().join(&folder).join("Cargo.toml")).unwrap();
            let name =
                manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            let is_private = manifest.contains("publish = false");
            assert_eq!(UNPUBLISHED.contains(&name), is_private, "{folder}: publish = false or a package");
        }
    }
}
