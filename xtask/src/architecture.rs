//! Compares ARCHITECTURE.md with the tree: every path that it names exists, and every source file or folder has a row.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose sources are described. Tests and examples are described as a whole.
const DESCRIBED: [&str; 3] = ["torture/src", "bench/src", "xtask/src"];

/// The names of a folder's main file need no row: the folder has one.
const MAIN_FILES: [&str; 3] = ["lib.rs", "main.rs", "mod.rs"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The text between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Folders with a section of their own, and all paths in the first columns of these sections.
fn described(page: &str) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let (mut sections, mut named) = (BTreeSet::new(), BTreeSet::new());
    let mut section = None;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            section = quoted(heading).next().map(|folder| PathBuf::from(folder.trim_end_matches('/')));
            sections.extend(section.clone());
        } else if let (Some(folder), Some(row)) = (&section, line.strip_prefix("| `")) {
            let column = row.split(" |").next().unwrap_or_default();
            let column = format!("`{column}");
            named.extend(quoted(&column).map(|name| folder.join(name.trim_end_matches('/'))));
        } else if line.starts_with("## ") {
            section = None;
        }
    }
    (sections, named)
}

/// The entries of a folder, relative to the root.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(Result::unwrap);
    entries.map(|entry| folder.join(entry.file_name())).collect()
}

fn folders_below(folder: PathBuf) -> Vec<PathBuf> {
    let below = entries(&folder).into_iter().filter(|entry| root().join(entry).is_dir());
    let below: Vec<PathBuf> = below.flat_map(folders_below).collect();
    [folder].into_iter().chain(below).collect()
}

#[test]
fn every_path_of_the_architecture_exists() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (sections, named) = described(&page);
    // An example on the page: this crate does not exist.
    let imagined = |path: &Path| path.ends_with("oncebox-mariadb");
    let in_text = quoted_paths(&page).filter(|path| !imagined(path));
    let missing: BTreeSet<PathBuf> =
        sections.into_iter().chain(named).chain(in_text).filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names paths that do not exist: {missing:?}");
}

/// Whole paths anywhere on the page.
fn quoted_paths(page: &str) -> impl Iterator<Item = PathBuf> {
    let tops = ["crates/", "tests/", "torture/", "examples/", "bench/", "xtask/", "docs/"];
    let in_line = move |line: &str| -> Vec<PathBuf> {
        quoted(line).filter(|text| tops.iter().any(|top| text.starts_with(top))).map(PathBuf::from).collect()
    };
    page.lines().flat_map(in_line).collect::<Vec<_>>().into_iter()
}

#[test]
fn every_source_folder_and_file_is_described() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (sections, named) = described(&page);
    let crates = entries(Path::new("crates")).into_iter().map(|folder| folder.join("src"));
    let all: Vec<PathBuf> = crates.chain(DESCRIBED.map(PathBuf::from)).flat_map(folders_below).collect();
    let folders = all.iter().filter(|folder| !sections.contains(*folder) && !named.contains(*folder));
    let is_main = |path: &Path| MAIN_FILES.iter().any(|name| path.ends_with(name));
    let files = sections.iter().flat_map(|folder| entries(folder));
    let files: Vec<PathBuf> = files.filter(|path| !is_main(path) && !named.contains(path)).collect();
    let missing: BTreeSet<&PathBuf> = folders.chain(&files).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md has no row for {missing:?}");
}
