//! Links between the pages of the repository: their files and headings exist. The crate's own page, which docs.rs shows too, has
//! absolute links only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where the repository is for readers of docs.rs.
const REPOSITORY: &str = "https://github.com/oncebox/oncebox/blob/main/";

/// The page that docs.rs shows.
const TOUR: &str = "crates/oncebox/src/tour.md";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The pages in a folder, and below it if asked for, by their paths from the root.
fn pages_in(folder: &str, is_deep: bool) -> BTreeSet<PathBuf> {
    let mut pages = BTreeSet::new();
    for entry in fs::read_dir(root().join(folder)).unwrap().map(Result::unwrap) {
        let path = Path::new(folder).join(entry.file_name());
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.insert(path);
        } else if is_deep && entry.path().is_dir() {
            pages.extend(pages_in(path.to_str().unwrap(), true));
        }
    }
    pages
}

/// A page without its code blocks: they have no links and no headings.
fn prose(page: &str) -> String {
    let mut fence = None;
    let mut prose = String::new();
    for line in page.lines() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => {
                prose.push_str(line);
                prose.push('\n');
            }
            _ => {}
        }
    }
    prose
}

/// The text without inline code.
fn without_code(text: &str) -> String {
    text.lines().flat_map(|line| line.split('`').step_by(2).chain(["\n"])).collect()
}

/// The targets of all links, images and reference definitions.
fn targets(page: &str) -> Vec<String> {
    let text = without_code(&prose(page));
    let mut targets: Vec<String> = Vec::new();
    for after in text.split("](").skip(1) {
        targets.extend(after.split([')', ' ', '\n']).next().map(str::to_owned));
    }
    for line in text.lines() {
        if let Some((_, target)) = line.strip_prefix('[').and_then(|line| line.split_once("]: ")) {
            targets.push(target.trim().to_owned());
        }
    }
    for attribute in ["href=\"", "src=\"", "srcset=\""] {
        targets.extend(
            text.split(attribute).skip(1).filter_map(|after| Some(after.split_once('"')?.0.to_owned())),
        );
    }
    targets.into_iter().map(|target| target.trim_matches(['<', '>']).to_owned()).collect()
}

/// The anchors of a page as GitHub makes them, and those that the page sets itself.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = prose(page);
    let mut seen = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug = slug(heading.trim());
        let again: &mut u32 = seen.entry(slug.clone()).or_default();
        anchors.insert(if *again == 0 { slug } else { format!("{slug}-{again}") });
        *again += 1;
    }
    for attribute in ["id=\"", "name=\""] {
        anchors.extend(
            text.split(attribute).skip(1).filter_map(|after| Some(after.split_once('"')?.0.to_owned())),
        );
    }
    anchors
}

/// Letters, digits, hyphens and underscores stay, in lower case; spaces are hyphens.
fn slug(heading: &str) -> String {
    // Of a link only the text is shown.
    let mut shown = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        shown.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    shown.push_str(rest);
    let keep = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    shown.to_lowercase().chars().filter(keep).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The path from the root, without `..` in it.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The fault of a link, if it has one.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (in_repository, target) = match target.strip_prefix(REPOSITORY) {
        Some(path) => (true, path),
        None => (false, target),
    };
    if !in_repository && (target.contains("://") || target.starts_with("mailto:")) {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let file = if path.is_empty() {
        page.to_owned()
    } else if in_repository {
        normal(Path::new(path))
    } else {
        normal(&page.parent().unwrap().join(path))
    };
    if !root().join(&file).exists() {
        return Some(format!("{} does not exist", file.display()));
    }
    let anchor = anchor.filter(|_| file.extension().is_some_and(|extension| extension == "md"))?;
    let text = fs::read_to_string(root().join(&file)).unwrap();
    (!anchors(&text).contains(anchor)).then(|| format!("{} has no heading for #{anchor}", file.display()))
}

/// Whether the crate's page links to an item of the crate: rustdoc checks those.
fn is_item(target: &str) -> bool {
    !target.contains(['/', '#']) && !target.ends_with(".md")
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    for page in pages_in("", false).into_iter().chain(pages_in("docs", true)).chain(pages_in(".github", true))
    {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let in_page = targets(&text)
            .into_iter()
            .filter_map(|target| Some(format!("{}: {target}: {}", page.display(), fault(&page, &target)?)));
        faults.extend(in_page);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_tour_links_to_the_repository_by_absolute_addresses() {
    let text = fs::read_to_string(root().join(TOUR)).unwrap();
    let mut faults = Vec::new();
    for target in targets(&text).into_iter().filter(|target| !is_item(target)) {
        if target.starts_with('#') || target.contains("://") {
            faults.extend(fault(Path::new(TOUR), &target).map(|fault| format!("{target}: {fault}")));
        } else {
            faults.push(format!("{target}: write {REPOSITORY}…, docs.rs has only this page"));
        }
    }
    assert!(faults.is_empty(), "{TOUR}:\n{}", faults.join("\n"));
}

/// An example that nothing compiles goes stale.
#[test]
fn every_page_with_rust_in_it_is_compiled() {
    let tests = fs::read_to_string(root().join("tests/src/lib.rs")).unwrap();
    for page in pages_in("", false).into_iter().chain(pages_in("docs", true)) {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let has_rust = text.lines().any(|line| line.starts_with("```rust"));
        let included = format!("include_str!(\"../../{}\")", page.display());
        assert!(
            !has_rust || tests.contains(&included),
            "{} has Rust: include it in tests/src/lib.rs",
            page.display()
        );
    }
}

#[test]
fn links_and_headings_are_found_as_readers_see_them() {
    let page = "# The `once` call\n[a](x.md#y) [b][c] ![d](p.svg \"t\") `[no](no.md)`\n\n```text\n# no\n[no](no.md)\n```\n\
                ## The `once` call\n\n## Ready? [Yes](y.md), it is: 1.0\n<a id=\"own\" href=\"z.md\">\n\n[c]: d/e.md\n";
    assert_eq!(targets(page), ["x.md#y", "p.svg", "y.md", "d/e.md", "z.md"]);
    let expected = ["own", "ready-yes-it-is-10", "the-once-call", "the-once-call-1"];
    assert_eq!(anchors(page), expected.map(str::to_owned).into());
}
