//! Every statement, with the schema's name put in once.

use oncebox_core::mutant::edited;
#[cfg(test)]
use oncebox_core::store::statement::StatementFile;
use oncebox_core::store::statement::section;
use oncebox_core::{Error, ErrorKind};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};
use std::sync::Arc;

use crate::mutants::EDITS;

/// The schema in which the tables live; checked, so that it can be quoted without surprises.
#[derive(Clone, Debug)]
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let mut bytes = name.bytes();
        let good = name.len() <= 41
            && bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !good {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "{name:?} cannot be the schema's name: use up to 41 of a-z, 0-9 and _, not beginning with a digit"
                ),
            ));
        }
        Ok(Self(name.to_owned()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Puts the schema's name into a statement.
    pub(crate) fn within(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.0)
    }
}

macro_rules! statements {
    ($($file:ident { $($name:ident),+ $(,)? })+) => {
        /// Every statement of the store, by the file that it stands in.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $($(pub(crate) $name: SqlStr,)+)+
        }

        impl Statements {
            pub(crate) fn new(schema: &Schema) -> Self {
                Self {
                    $($($name: {
                        const TEXT: &str =
                            section(include_str!(concat!("sql/", stringify!($file), ".sql")), stringify!($name));
                        let sql: Arc<str> = schema.within(edited(EDITS, stringify!($name), TEXT)).into();
                        // Safe: the only thing put in is the schema's name, which was checked.
                        AssertSqlSafe(sql).into_sql_str()
                    },)+)+
                }
            }
        }

        /// The files: name, text, and the names of the statements.
        #[cfg(test)]
        const FILES: &[StatementFile] = &[$((
            stringify!($file),
            include_str!(concat!("sql/", stringify!($file), ".sql")),
            &[$(stringify!($name)),+],
        )),+];
    };
}

statements! {
    schema { lock_migration, has_version_table, version }
    transaction {
        session_settings, begin, begin_shared, arm, guard, isolate, keep, undo, commit,
        commit_and_begin, finish, finish_and_begin, rollback, terminate_backend,
    }
    handler {
        find_handlers, find_leftovers, add_handler, change_handler, revive_handler,
        set_state, free_name, rename_handler, reserve_name, remove_handler,
    }
    lane {
        find_layout, make_layout, open_lanes, begin_lanes, end_lanes, close_lanes, lock_lanes,
        lock_handler_lanes, lock_upkeep,
    }
    marker {
        claim, claim_one, claim_in, find_marker, find_markers, unclaim, unclaim_many,
        record_results, settle_markers, import_processed, import_accepted, backfill_markers, sweep,
        sweep_accepted,
    }
    message { append, spill, announce, prune }
    outbox {
        capture, is_in_transaction, capture_one, move_captured, captured, outbox_size, waiting_messages,
        waiting_message, find_published, unsent_messages,
    }
    work { look, look_ordered, take, take_tasks }
    task { write_tasks, lease, task_attempts, complete, free_tasks }
    dead { write_dead_letters, dead_letters, lock_dead, act_on_dead }
    replay { first_messages, replay_lanes, replay }
    relay { lease_lane, read_range, settle_range, release_lane }
    process { enter, beat_process, leave, peers, remove_crashed }
    care { note_crash, note_attempt, give_back_attempt, forget_attempt, end_care }
    audit { audit, audit_handler }
    live_time { beat, live_time, forget_live_time }
    survey { handler_statuses, unhandled_kinds, pending, messages, find_message, tasks }
}

/// A statement as it stands in its file.
#[cfg(test)]
pub(crate) fn unedited(name: &str) -> Option<&'static str> {
    let (_, text, _) = FILES.iter().find(|(_, _, names)| names.contains(&name))?;
    Some(section(text, name))
}

#[cfg(test)]
mod tests {
    use oncebox_core::store::statement::check_files;

    use super::*;

    #[test]
    fn every_statement_and_every_file_is_listed() {
        // `migrate.rs` prints the grants, `target.rs` asks the server.
        check_files(FILES, concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql"), &["grants", "server"]);
    }

    #[test]
    fn schema_names_are_checked_before_they_are_quoted() {
        for good in ["oncebox", "_x", "a1_b", &"a".repeat(41)] {
            assert!(Schema::new(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "A", "a-b", "a\"b", "a b", "ä", &"a".repeat(42), "x\"; drop table marker; --"]
        {
            assert_eq!(Schema::new(bad).unwrap_err().kind(), ErrorKind::Configuration, "{bad}");
        }
    }
}
