//! Every statement of the store, by the file that it stands in.

use std::sync::LazyLock;

use oncebox_core::mutant::{self, edited};
#[cfg(test)]
use oncebox_core::store::statement::StatementFile;
use oncebox_core::store::statement::section;

use crate::mutants::EDITS;

macro_rules! statements {
    ($($file:ident { $($name:ident),+ $(,)? })+) => {
        $($(
            pub(crate) fn $name() -> &'static str {
                const TEXT: &str =
                    section(include_str!(concat!("sql/", stringify!($file), ".sql")), stringify!($name));
                // A normal build has the constant only.
                if mutant::ENABLED {
                    static EDITED: LazyLock<&str> = LazyLock::new(|| edited(EDITS, stringify!($name), TEXT));
                    *EDITED
                } else {
                    TEXT
                }
            }
        )+)+

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
    schema { has_version_table, version }
    transaction { isolate, keep, undo }
    handler {
        find_handlers, find_leftovers, can_have_tasks, add_handler,
        change_handler, revive_handler, set_state, free_name, rename_handler,
        reserve_name, remove_handler,
    }
    lane {
        find_layout, make_layout, begin_lanes, advance, drop_progress,
        prune_progress,
    }
    marker {
        claim, find_marker, find_markers, unclaim, record_results, settle_markers, mark_done,
        mark_all_done, mark_spilled, import_accepted, append_marker, find_accepted,
        backfill_markers, sweep, sweep_result, sweep_accepted,
    }
    message { begin_append, append, note_kinds, prune, prune_next }
    outbox {
        capture, has_captured, move_captured, remove_captured, captured, outbox_size, waiting_messages,
        waiting_message, find_published, unsent_messages,
    }
    work {
        look, find_progress, take, find_taker, due_tasks, due_near, due_heads, due_behind,
        take_tasks,
    }
    task {
        write_tasks, next_fence, task_attempts, retry_task, end_task, remove_tasks, drop_tasks, free_tasks,
        count_tasks, correct_due_times,
    }
    dead {
        write_dead_letters, dead_letter_task, dead_letters, choose_dead, retry_dead, resolve_dead,
        mark_dead_done, remove_dead, drop_dead,
    }
    replay {
        replay_lanes, begin_replay, drop_replay, drop_replays, drop_tasks_behind,
        drop_dead_behind,
    }
    relay { lease_lane, is_leased, release_lane, end_leases, free_lanes }
    process { enter, beat_process, leave, peers, remove_crashed }
    care {
        note_crash, note_attempt, give_back_attempt, drop_empty_attempt, forget_attempt,
        forget_attempts, drop_attempts, count_care, end_care, drop_care,
    }
    audit { audit, audit_dead, audit_handler }
    live_time { beat, begin_live_time, live_time, forget_live_time }
    survey {
        handler_statuses, unhandled_kinds, pending, messages, message_states, find_message,
        tasks, task_waits,
    }
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
        check_files(FILES, concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql"), &[]);
    }
}
