//! Named SQL statements: a file holds several, and each is found by its name at compile time.
//!
//! A file holds the statements of one table or role. It is plain SQL: a shell can run it, or one statement of it. Each
//! statement begins with a line that names it and ends with `;`. Comments after the name belong to the statement. Text before
//! the first name belongs to the file.
//!
//! ```sql
//! -- Markers: which handler has done which key.
//!
//! -- name: find_marker
//! -- Reads one marker.
//! -- Index: marker_pkey.
//! select state from marker where handler = $1 and key = $2;
//!
//! -- name: unclaim
//! -- Deletes the marker of a unit whose handler failed.
//! -- Index: marker_pkey.
//! delete from marker where handler = $1 and key = $2;
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The beginning of a line that names a statement.
const HEADER: &str = "-- name: ";

/// The statement with this name in a file, with its comments, but without its header and its last `;`.
///
/// Evaluate it in a constant, so that a wrong name is a compile error.
///
/// ```
/// use oncebox_core::store::statement::section;
///
/// const FILE: &str = "-- name: first\nselect 1;\n\n-- name: second\n-- Two.\nselect 2;\n";
/// const SECOND: &str = section(FILE, "second");
/// assert_eq!(SECOND, "-- Two.\nselect 2");
/// ```
///
/// ```compile_fail
/// use oncebox_core::store::statement::section;
///
/// const THIRD: &str = section("-- name: first\nselect 1;\n", "third");
/// ```
///
/// # Panics
///
/// If the file has no statement of that name, or two, or if the statement does not end with `;`.
pub const fn section<'f>(file: &'f str, name: &str) -> &'f str {
    let mut found = None;
    let mut rest = file;
    // To the end of the file, so that a second statement of this name is found.
    while let Some((statement, behind)) = first(rest) {
        if name.len() == statement.name.len() && is_at(name.as_bytes(), statement.name.as_bytes(), 0) {
            assert!(found.is_none(), "the file has two statements of this name");
            found = Some(statement.text);
        }
        rest = behind;
    }
    match found {
        Some(text) => without_semicolon(text),
        None => panic!("the file has no statement of this name"),
    }
}

/// The names of a file's statements, in their order. A test compares them with the list of the store.
///
/// ```
/// use oncebox_core::store::statement::names;
///
/// let file = "-- name: first\nselect 1;\n\n-- name: second\nselect 2;\n";
/// assert!(names(file).eq(["first", "second"]));
/// ```
pub fn names(file: &str) -> impl Iterator<Item = &str> {
    let mut rest = file;
    std::iter::from_fn(move || {
        let (statement, behind) = first(rest)?;
        rest = behind;
        Some(statement.name)
    })
}

/// A file of statements as a store lists it: its name, its text, and the names of its statements.
pub type StatementFile = (&'static str, &'static str, &'static [&'static str]);

/// Checks that a store lists every statement of its files, in their order, and every file of its folder; for a test of the store.
/// The compiler reports a listed statement that no code uses. `others` are files that have no listed statements.
///
/// # Panics
///
/// If the list and the files differ, or the folder cannot be read.
pub fn check_files(files: &[StatementFile], folder: impl AsRef<Path>, others: &[&str]) {
    for (file, text, listed) in files {
        assert!(names(text).eq(listed.iter().copied()), "{file}.sql and the list differ");
    }
    let entries = fs::read_dir(&folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.as_ref().display()));
    let found: BTreeSet<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let listed = files.iter().map(|(file, ..)| file).chain(others);
    let listed: BTreeSet<_> = listed.map(|file| format!("{file}.sql").into()).collect();
    assert_eq!(found, listed, "the folder and the list differ");
}

struct Named<'f> {
    name: &'f str,
    text: &'f str,
}

/// The first named statement of a text, and the text after it.
const fn first(text: &str) -> Option<(Named<'_>, &str)> {
    let header = find_header(text);
    if header == text.len() {
        return None;
    }
    let (_, named) = text.split_at(header + HEADER.len());
    let (name, behind) = named.split_at(find_line_end(named));
    let (text, behind) = behind.split_at(find_header(behind));
    // Trimmed: files from Windows end their lines with a carriage return.
    Some((Named { name: name.trim_ascii(), text: text.trim_ascii() }, behind))
}

/// The offset of the first line with a name; the length of the text if there is none.
const fn find_header(text: &str) -> usize {
    let bytes = text.as_bytes();
    // A loop over bytes: `const fn` can call neither iterators nor `str::find`.
    let mut at = 0;
    while at < bytes.len() {
        // Only at the start of a line: the same text inside a string or a comment is no header.
        if (at == 0 || bytes[at - 1] == b'\n') && is_at(HEADER.as_bytes(), bytes, at) {
            break;
        }
        at += 1;
    }
    at
}

const fn find_line_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() && bytes[at] != b'\n' {
        at += 1;
    }
    at
}

/// Whether the wanted bytes are at this offset.
const fn is_at(wanted: &[u8], bytes: &[u8], at: usize) -> bool {
    let mut n = 0;
    while n < wanted.len() && at + n < bytes.len() && wanted[n] == bytes[at + n] {
        n += 1;
    }
    n == wanted.len()
}

const fn without_semicolon(statement: &str) -> &str {
    match statement.as_bytes() {
        [.., b';'] => statement.split_at(statement.len() - 1).0,
        _ => panic!("the statement does not end with `;`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "-- Of the file: é.\n\n-- name: one\n-- Why.\nselect 1;\n\n-- name: one_more\nbegin;\nselect '-- name: é';\n";

    #[test]
    fn a_statement_is_found_by_its_whole_name() {
        assert_eq!(section(FILE, "one"), "-- Why.\nselect 1");
        assert_eq!(section(FILE, "one_more"), "begin;\nselect '-- name: é'");
        assert!(names(FILE).eq(["one", "one_more"]));
    }

    #[test]
    fn files_from_windows_are_read_too() {
        let file = FILE.replace('\n', "\r\n");
        assert_eq!(section(&file, "one"), "-- Why.\r\nselect 1");
        assert!(names(&file).eq(["one", "one_more"]));
    }

    #[test]
    fn a_file_without_statements_has_no_names() {
        assert_eq!(names("").next(), None);
        assert_eq!(names("-- Nothing yet, and no header: -- name: one\n").next(), None);
    }

    #[test]
    #[should_panic(expected = "numbers.sql and the list differ")]
    fn a_statement_that_is_not_listed_is_refused() {
        check_files(&[("numbers", FILE, &["one"])], ".", &[]);
    }

    #[test]
    #[should_panic(expected = "the folder and the list differ")]
    fn a_file_that_is_not_listed_is_refused() {
        check_files(
            &[("numbers", FILE, &["one", "one_more"])],
            concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
            &[],
        );
    }

    #[test]
    #[should_panic(expected = "the file has no statement of this name")]
    fn a_missing_name_is_refused() {
        section(FILE, "on");
    }

    #[test]
    #[should_panic(expected = "the file has two statements of this name")]
    fn a_doubled_name_is_refused() {
        section("-- name: one\nselect 1;\n-- name: one\nselect 2;\n", "one");
    }

    #[test]
    #[should_panic(expected = "the statement does not end with `;`")]
    fn an_open_end_is_refused() {
        section("-- name: one\nselect 1\n-- name: two\nselect 2;\n", "one");
    }
}
