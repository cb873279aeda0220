//! The statements of the stores can be compared: what both have stands in the same file of both.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Every statement of a store, with its file.
fn statements(store: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(store).join("src/sql");
    let mut statements = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let file = entry.file_name().into_string().unwrap();
        let text = fs::read_to_string(entry.path()).unwrap();
        for name in text.lines().filter_map(|line| line.strip_prefix("-- name: ")) {
            let other = statements.insert(name.to_owned(), file.clone());
            assert_eq!(other, None, "{store} has {name} in two files");
        }
    }
    statements
}

#[test]
fn a_statement_of_both_stores_is_in_the_same_file() {
    let [sqlite, postgres] = ["oncebox-sqlite", "oncebox-postgres"].map(statements);
    let of_both = sqlite.iter().filter_map(|(name, file)| Some((name, file, postgres.get(name)?)));
    for (name, file, other) in of_both {
        assert_eq!(file, other, "{name}");
    }
}
