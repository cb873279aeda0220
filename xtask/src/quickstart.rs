//! The README's quick start as a package of its own, as a reader would make it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::readme::QuickStart;

/// Writes the package to `folder`, which lies outside the workspace.
pub(crate) fn write_package(root: &Path, folder: &Path) -> Result<()> {
    let readme = fs::read_to_string(root.join("README.md")).context("reading README.md")?;
    let quick_start = QuickStart::read(&readme)?;
    let manifest = manifest(&quick_start.dependencies, &published(root)?);
    write(&folder.join("Cargo.toml"), &manifest)?;
    fs::create_dir(folder.join("src")).context("creating the quick start's src")?;
    write(&folder.join("src/main.rs"), &quick_start.program)?;
    // The same versions as in the workspace; cargo drops the packages that it does not need.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).context("copying Cargo.lock")?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

// The versions that the README names are those of this tree, published or not.
fn manifest(dependencies: &str, published: &[(String, String)]) -> String {
    let mut manifest = String::from(
        // An empty `[workspace]`, so that cargo does not search the folders above for one.
        "[package]\nname = \"quickstart\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n",
    );
    if !dependencies.lines().any(|line| line.trim() == "[dependencies]") {
        manifest.push_str("[dependencies]\n");
    }
    manifest.push_str(dependencies);
    manifest.push_str("\n[patch.crates-io]\n");
    for (name, path) in published {
        // A path in Rust's quotes is one in TOML's.
        manifest.push_str(&format!("{name} = {{ path = {path:?} }}\n"));
    }
    manifest
}

// Every crate that readers can depend on, as (name, path); folders are named after their packages.
fn published(root: &Path) -> Result<Vec<(String, String)>> {
    let folders = fs::read_dir(root.join("crates")).context("listing the workspace's crates")?;
    let mut published = Vec::new();
    for folder in folders {
        let folder = folder.context("listing the workspace's crates")?;
        let Ok(manifest) = fs::read_to_string(folder.path().join("Cargo.toml")) else { continue };
        if !manifest.lines().any(|line| line.trim() == "publish = false") {
            let name = folder.file_name().to_string_lossy().into_owned();
            published.push((name, folder.path().to_string_lossy().into_owned()));
        }
    }
    // `read_dir` has no fixed order.
    published.sort();
    Ok(published)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(readme: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("README.md", readme),
            ("Cargo.lock", "version = 4\n"),
            ("crates/oncebox/Cargo.toml", "[package]\nname = \"oncebox\"\n"),
            ("crates/oncebox-core/Cargo.toml", "[package]\nname = \"oncebox-core\"\n"),
            ("crates/oncebox-servers/Cargo.toml", "[package]\npublish = false\n"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_package_depends_on_this_tree() {
        let root = tree("# Quick start\n```toml\noncebox = \"0.1\"\n```\n```rust\nfn main() {}\n```\n");
        let folder = tempfile::tempdir().unwrap();
        write_package(root.path(), folder.path()).unwrap();

        let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
        let crates = root.path().join("crates");
        let expected = format!(
            "[package]\nname = \"quickstart\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n\
             [dependencies]\noncebox = \"0.1\"\n\n[patch.crates-io]\n\
             oncebox = {{ path = \"{0}/oncebox\" }}\noncebox-core = {{ path = \"{0}/oncebox-core\" }}\n",
            crates.display()
        );
        assert_eq!(manifest, expected);
        assert_eq!(fs::read_to_string(folder.path().join("src/main.rs")).unwrap(), "fn main() {}\n");
        assert!(folder.path().join("Cargo.lock").exists());
    }

    #[test]
    fn a_dependencies_table_of_the_readmes_own_is_kept() {
        let manifest = manifest("[dependencies]\noncebox = \"0.1\"\n", &[]);
        assert_eq!(manifest.matches("[dependencies]").count(), 1);
    }
}
