//! Every statement, with the schema's name put in once.

use oncebox_core::mutant::edited;
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
    ($($name:ident),* $(,)?) => {
        /// Every statement of the store; each is the file of that name.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $(pub(crate) $name: SqlStr,)*
        }

        impl Statements {
            pub(crate) fn new(schema: &Schema) -> Self {
                Self {
                    $($name: {
                        let sql = include_str!(concat!("sql/", stringify!($name), ".sql"));
                        let sql: Arc<str> = schema.within(edited(EDITS, stringify!($name), sql)).into();
                        // Safe: the only thing put in is the schema's name, which was checked.
                        AssertSqlSafe(sql).into_sql_str()
                    },)*
                }
            }
        }
    };
}

statements!(
    act,
    add_handler,
    announce,
    append,
    arm,
    audit,
    backfill_markers,
    beat,
    beat_process,
    begin,
    begin_lanes,
    begin_shared,
    bury,
    bury_process,
    change_handler,
    claim,
    claim_in,
    claim_one,
    commit,
    commit_and_begin,
    complete,
    dead_letters,
    end_care,
    end_lanes,
    end_statement,
    enter,
    find_handlers,
    find_layout,
    find_marker,
    find_markers,
    find_message,
    finish,
    finish_last,
    forget_attempt,
    forget_live_time,
    free_tasks,
    give_back_attempt,
    guard,
    handler_statuses,
    has_version_table,
    isolate,
    keep,
    keep_name,
    lease,
    leave,
    leftovers,
    live_time,
    lock_dead,
    lock_lanes,
    lock_lanes_of,
    lock_upkeep,
    look,
    look_ordered,
    make_layout,
    mark_accepted,
    mark_processed,
    messages,
    migration_lock,
    note_attempt,
    pause_handler,
    peers,
    pending,
    prune,
    record_results,
    remove_handler,
    rename_handler,
    replay,
    replay_targets,
    revive_handler,
    rollback,
    session,
    set_apart,
    set_name,
    settle_markers,
    spill,
    sweep,
    sweep_accepted,
    take_back_markers,
    take_over,
    take,
    take_tasks,
    tasks,
    unclaim,
    undo,
    unhandled_kinds,
    version,
);

#[cfg(test)]
mod tests {
    use super::*;

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
