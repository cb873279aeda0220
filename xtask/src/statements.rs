//! The statements of the stores can be compared: same file, same name, and comments that name their indexes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const STORES: [&str; 2] = ["oncebox-sqlite", "oncebox-postgres"];

/// Work that takes one statement on PostgreSQL and several on SQLite. A statement of the same name counts as both.
const SEVERAL_ON_SQLITE: &[(&str, &[&str])] = &[
    (
        "act_on_dead",
        &["choose_dead", "audit_dead", "retry_dead", "mark_dead_done", "resolve_dead", "remove_dead"],
    ),
    ("append", &["begin_append", "find_accepted", "append_marker", "note_kinds"]),
    ("beat", &["begin_live_time"]),
    ("complete", &["retry_task", "dead_letter_task", "end_task", "mark_done"]),
    ("end_lanes", &["drop_progress", "drop_replays"]),
    ("finish", &["advance"]),
    ("forget_attempt", &["count_care"]),
    ("give_back_attempt", &["drop_empty_attempt"]),
    ("lease", &["next_fence"]),
    ("leave", &["forget_attempts", "free_lanes"]),
    ("messages", &["message_states", "task_waits"]),
    ("move_captured", &["has_captured", "remove_captured"]),
    ("prune", &["prune_next", "prune_progress"]),
    ("remove_handler", &["drop_tasks", "drop_dead", "drop_attempts", "drop_care", "mark_all_done"]),
    ("replay", &["begin_replay", "drop_replay", "drop_tasks_behind", "drop_dead_behind"]),
    ("set_state", &["end_leases"]),
    ("settle_range", &["is_leased"]),
    ("spill", &["can_have_tasks", "mark_spilled"]),
    ("sweep", &["sweep_result"]),
    ("take", &["find_progress", "count_tasks"]),
    ("take_tasks", &["find_taker", "due_tasks", "due_near", "due_heads", "due_behind", "remove_tasks"]),
];

/// Statements that only SQLite needs, with the reason.
const ONLY_SQLITE: &[(&str, &str)] =
    &[("correct_due_times", "each process has its own clock: there is no server with one for all")];

/// Statements that only PostgreSQL needs, with the reason.
const ONLY_POSTGRES: &[(&str, &[&str])] = &[
    (
        "SQLite has one writer, which is the lock",
        &[
            "lock_migration",
            "open_lanes",
            "close_lanes",
            "lock_lanes",
            "lock_handler_lanes",
            "lock_upkeep",
            "lock_dead",
        ],
    ),
    (
        "SQLite runs one statement once for each row, in one call of the driver",
        &["claim_one", "claim_in", "unclaim_many", "import_processed", "capture_one"],
    ),
    (
        "SQLite's driver, its hooks and `seal.rs` do the same without statements",
        &[
            "session_settings",
            "begin",
            "begin_shared",
            "arm",
            "guard",
            "commit",
            "commit_and_begin",
            "finish_and_begin",
            "rollback",
            "terminate_backend",
            "is_in_transaction",
        ],
    ),
    ("SQLite reads a range as it takes messages", &["read_range"]),
    ("`look` of SQLite answers this too, as does `replay_lanes`", &["look_ordered", "first_messages"]),
    ("processes on SQLite ask for work at intervals", &["announce"]),
    ("SQLite has no servers", &["server_state", "timeline"]),
];

#[derive(Debug)]
struct Statement {
    file: String,
    text: String,
}

fn source(store: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(store).join("src")
}

/// Every statement of a store, by name.
fn statements(store: &str) -> BTreeMap<String, Statement> {
    let mut statements = BTreeMap::new();
    for entry in fs::read_dir(source(store).join("sql")).unwrap().map(Result::unwrap) {
        let file = entry.file_name().into_string().unwrap();
        let text = fs::read_to_string(entry.path()).unwrap();
        for section in text.split("-- name: ").skip(1) {
            let (name, text) = section.split_once('\n').unwrap();
            let statement = Statement { file: file.clone(), text: text.to_owned() };
            let other = statements.insert(name.to_owned(), statement);
            assert!(other.is_none(), "{store} has {name} in two files");
        }
    }
    statements
}

/// The names that only SQLite has, and the names that only PostgreSQL has.
fn declared() -> [Vec<&'static str>; 2] {
    let several = SEVERAL_ON_SQLITE.iter().flat_map(|(_, several)| several.iter().copied());
    let only_postgres = ONLY_POSTGRES.iter().flat_map(|(_, names)| names.iter().copied());
    [several.chain(ONLY_SQLITE.iter().map(|(name, _)| *name)).collect(), only_postgres.collect()]
}

#[test]
fn a_statement_of_both_stores_is_in_the_same_file() {
    let [sqlite, postgres] = STORES.map(statements);
    for (name, statement) in &sqlite {
        if let Some(other) = postgres.get(name) {
            assert_eq!(statement.file, other.file, "{name}");
        }
    }
}

#[test]
fn a_name_of_one_store_only_is_declared() {
    let all = STORES.map(statements);
    for (n, declared) in declared().iter().enumerate() {
        let (store, other) = (&all[n], &all[1 - n]);
        for name in store.keys() {
            let is_twin = other.contains_key(name) || SEVERAL_ON_SQLITE.iter().any(|(one, _)| one == name);
            let is_declared = declared.contains(&&**name);
            assert!(
                is_twin || is_declared,
                "{}: declare `{name}`, or give it the name of its twin",
                STORES[n]
            );
        }
        for name in declared {
            assert!(store.contains_key(*name), "{}: `{name}` is declared and not there", STORES[n]);
            assert!(!other.contains_key(*name), "`{name}` is declared as different and in both stores");
        }
    }
    for (one, _) in SEVERAL_ON_SQLITE {
        assert!(all[1].contains_key(*one), "`{one}` is declared and not there");
    }
}

/// The last comment above a statement, which names its indexes or rows.
fn access(text: &str) -> Option<String> {
    let comments = text
        .lines()
        .take_while(|line| line.starts_with("--"))
        .map(|line| line.trim_start_matches("--").trim());
    let comments: Vec<_> = comments.collect();
    let begins =
        comments.iter().rposition(|line| line.starts_with("Index: ") || line.starts_with("Rows: "))?;
    // A description of the statement must come before it.
    (begins > 0).then(|| comments[begins..].join(" "))
}

#[test]
fn a_statement_says_what_it_does_and_along_which_index() {
    for store in STORES {
        for (name, statement) in statements(store) {
            assert!(
                access(&statement.text).is_some(),
                "{store}, {name}: describe it, then add `-- Index: …` or `-- Rows: …`"
            );
        }
    }
}

#[test]
fn every_index_that_a_comment_names_is_in_a_migration() {
    for store in STORES {
        let mut migrations = String::new();
        for entry in fs::read_dir(source(store).join("migrations")).unwrap().map(Result::unwrap) {
            migrations += &fs::read_to_string(entry.path()).unwrap().replace("\"{schema}\".", "");
        }
        let is_there = |name: &str| {
            let of_table = name.strip_suffix("_pkey").or(name.strip_suffix("_name_key")).unwrap_or(name);
            [
                format!("create table {of_table} ("),
                format!("create index {name} "),
                format!("rename to {name};"),
            ]
            .iter()
            .any(|text| migrations.contains(text))
        };
        for (name, statement) in statements(store) {
            let access = access(&statement.text).unwrap();
            let Some(indexes) = access.strip_prefix("Index: ") else { continue };
            let indexes = indexes.split(" Rows: ").next().unwrap();
            let words = indexes.split([' ', ',', ';', '.']).filter(|word| word.contains('_'));
            for index in words {
                assert!(is_there(index), "{store}, {name}: there is no index or table {index}");
            }
        }
    }
}
