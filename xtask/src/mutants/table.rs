//! All mutants, with the fault of each and the tests that must fail.
//!
//! One mistake that is known from other systems has no mutant yet: acknowledging the highest offset instead of the contiguous one, or
//! a whole batch of which a part failed. There are no sources with offsets. In a lane the equivalents are `progress_past_the_unreached`,
//! `whole_batch_ack` and `relay_skips_past_unconfirmed`.

/// One way to break the protocol.
#[derive(Debug)]
pub(super) struct Mutant {
    /// Its name in the code.
    pub(super) name: &'static str,
    /// The fault, in a sentence.
    pub(super) breaks: &'static str,
    /// Groups of tests, as nextest filters: in each group at least one test must fail.
    pub(super) tests: &'static [&'static str],
}

/// A behaviour of the conformance suite, on both stores.
macro_rules! conformance {
    ($behaviour:literal) => {
        &[concat!("test(=in_a_file::", $behaviour, ")"), concat!("test(=as_owner::", $behaviour, ")")]
    };
}

/// A test that exists for each store.
macro_rules! on_every_store {
    ($module:literal, $test:literal) => {
        &[
            concat!("test(=", $module, "::on_sqlite::", $test, ")"),
            concat!("test(=", $module, "::on_postgres::", $test, ")"),
        ]
    };
}

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "ack_before_commit",
        breaks: "`process` returns before the database has confirmed `COMMIT`.",
        tests: conformance!("a_crash_before_commit_leaves_nothing"),
    },
    Mutant {
        name: "accept_before_commit",
        breaks: "`accept` returns before the message is stored in the log.",
        tests: on_every_store!(
            "stored_accept_batch",
            "a_message_that_the_store_refuses_is_not_acknowledged_and_its_neighbours_are"
        ),
    },
    Mutant {
        name: "marker_after_body",
        breaks: "The marker is inserted after the handler has run.",
        tests: on_every_store!("coming_from::semastery", "the_id_is_recorded_before_the_work_and_with_it"),
    },
    Mutant {
        name: "check_then_insert",
        breaks: "A read of the marker decides whether the handler runs, not the insert.",
        tests: on_every_store!("processes", "copies_over_four_processes_take_effect_once_and_never_overlap"),
    },
    Mutant {
        name: "marker_outside_transaction",
        breaks: "The marker is committed before the handler runs.",
        tests: conformance!("a_failed_handler_leaves_nothing_and_runs_again"),
    },
    Mutant {
        name: "key_without_handler",
        breaks: "A key counts for all handlers at once.",
        tests: conformance!("three_handlers_of_one_message_run_once_each"),
    },
    Mutant {
        name: "case_insensitive_key",
        breaks: "Keys that differ only in case are equal.",
        tests: conformance!("keys_compare_byte_by_byte"),
    },
    Mutant {
        name: "guard_removed_sqlite",
        breaks: "No check before the commit that the transaction is still the engine's own, on SQLite.",
        tests: &[
            "test(=in_a_file::whatever_a_handler_does_to_its_transaction_there_is_no_half_effect)",
            "test(=log::a_handler_cannot_commit_what_it_was_lent)",
        ],
    },
    Mutant {
        name: "guard_removed_postgres",
        breaks: "No check before the commit that the transaction is still the engine's own, on PostgreSQL.",
        tests: &[
            "test(=as_owner::whatever_a_handler_does_to_its_transaction_there_is_no_half_effect)",
            "test(=stored_hostile::on_postgres::neighbours_of_a_message_whose_handler_breaks_the_transaction_run_once)",
        ],
    },
    Mutant {
        name: "unsorted_claims",
        breaks: "A batch claims its keys in the order of arrival.",
        tests: &["test(=claims::a_batch_is_claimed_in_the_order_of_its_keys)"],
    },
    Mutant {
        name: "failed_unit_keeps_its_marker",
        breaks: "A failed unit of a batch is rolled back, but its marker stays.",
        tests: on_every_store!("batching", "neighbours_of_failing_units_are_unharmed"),
    },
    Mutant {
        name: "unknown_commit_is_a_failure",
        breaks: "A commit whose response was lost counts as failed, inline.",
        tests: on_every_store!("commit_unknown", "a_commit_that_happened_is_done"),
    },
    Mutant {
        name: "unknown_commit_is_a_failure_in_lanes",
        breaks: "A commit whose response was lost counts as failed, in the log.",
        tests: on_every_store!("stored_commit_unknown", "work_whose_commit_is_cut_takes_effect_once"),
    },
    Mutant {
        name: "equal_keys_not_collapsed",
        breaks: "Copies in one batch of accepts are sent to the store one by one.",
        tests: on_every_store!("stored_accept_batch", "equal_keys_in_one_batch_are_one_message"),
    },
    Mutant {
        name: "whole_batch_ack",
        breaks: "A whole batch of accepts is acknowledged although the store refused one message.",
        tests: on_every_store!(
            "stored_accept_batch",
            "a_message_that_the_store_refuses_is_not_acknowledged_and_its_neighbours_are"
        ),
    },
    Mutant {
        name: "accept_without_kind_sqlite",
        breaks: "An accepted key counts for all kinds, on SQLite.",
        tests: &["test(=in_a_file::an_accepted_key_counts_for_its_kind_only)"],
    },
    Mutant {
        name: "accept_without_kind_postgres",
        breaks: "An accepted key counts for all kinds, on PostgreSQL.",
        tests: &["test(=as_owner::an_accepted_key_counts_for_its_kind_only)"],
    },
    Mutant {
        name: "position_read_with_the_lock",
        breaks: "The statement that waits for the lane's lock also reads the newest position.",
        tests: &["test(=stored_acceptors::acceptors_of_distinct_keys_roll_nothing_back)"],
    },
    Mutant {
        name: "progress_read_with_the_lock",
        breaks: "The statement that takes the lane's lock also reads the progress.",
        tests: &["test(=as_owner::workers_in_one_lane_take_turns_without_an_error)"],
    },
    Mutant {
        name: "progress_past_the_unreached",
        breaks: "The progress passes messages of a batch that have not run.",
        tests: on_every_store!("stored_transient", "a_transient_error_spends_no_attempt"),
    },
    Mutant {
        name: "failed_message_dropped",
        breaks: "The progress passes a failed message, and no task is written.",
        tests: conformance!("a_failed_message_runs_again_and_its_neighbours_do_not"),
    },
    Mutant {
        name: "failed_head_is_passed",
        breaks: "Messages of an ordering key run although an earlier one waits.",
        tests: conformance!("only_the_key_of_a_failed_message_waits"),
    },
    Mutant {
        name: "lane_takes_targeted_sqlite",
        breaks: "A spilled message, which is for one handler, also runs from the lane, on SQLite.",
        tests: &["test(=in_a_file::a_spilled_message_runs_in_its_handler_alone)"],
    },
    Mutant {
        name: "lane_takes_targeted_postgres",
        breaks: "A spilled message, which is for one handler, also runs from the lane, on PostgreSQL.",
        tests: &["test(=as_owner::a_spilled_message_runs_in_its_handler_alone)"],
    },
    Mutant {
        name: "spill_without_marker",
        breaks: "A spilled message leaves no marker for its copies.",
        tests: conformance!("what_fails_inline_is_tried_again_from_the_log"),
    },
    Mutant {
        name: "notify_is_the_only_wake_up",
        breaks: "Workers look for messages only after a notification.",
        tests: conformance!("what_another_process_accepts_is_found"),
    },
    Mutant {
        name: "unfenced_completion_sqlite",
        breaks: "A detached run completes a task that another process leases by now, on SQLite.",
        tests: &[
            "test(=stored_leases::on_sqlite::a_process_that_is_taken_for_dead_changes_nothing_any_more)",
        ],
    },
    Mutant {
        name: "unfenced_completion_postgres",
        breaks: "A detached run completes a task that another process leases by now, on PostgreSQL.",
        tests: &[
            "test(=stored_leases::on_postgres::a_process_that_is_taken_for_dead_changes_nothing_any_more)",
        ],
    },
    Mutant {
        name: "lease_by_the_process_s_clock_sqlite",
        breaks: "The process's clock, not the store's, decides whether a lease has expired, on SQLite.",
        tests: &["test(=in_a_file::what_a_process_ran_when_it_crashed_runs_again)"],
    },
    Mutant {
        name: "lease_by_the_process_s_clock_postgres",
        breaks: "The process's clock, not the store's, decides whether a lease has expired, on PostgreSQL.",
        tests: &["test(=as_owner::what_a_process_ran_when_it_crashed_runs_again)"],
    },
    Mutant {
        name: "dead_letter_run_unasked_sqlite",
        breaks: "A dead letter runs again although its handler is done, on SQLite.",
        tests: &["test(=in_a_file::letters_that_were_resolved_count_as_done)"],
    },
    Mutant {
        name: "dead_letter_run_unasked_postgres",
        breaks: "A dead letter runs again although its handler is done, on PostgreSQL.",
        tests: &["test(=as_owner::letters_that_were_resolved_count_as_done)"],
    },
    Mutant {
        name: "newest_message_pruned_sqlite",
        breaks: "The newest message of a lane is pruned, so that positions start again, on SQLite.",
        tests: &["test(=in_a_file::what_all_handlers_have_passed_is_pruned_after_its_time)"],
    },
    Mutant {
        name: "newest_message_pruned_postgres",
        breaks: "The newest message of a lane is pruned, so that positions start again, on PostgreSQL.",
        tests: &["test(=as_owner::what_all_handlers_have_passed_is_pruned_after_its_time)"],
    },
    Mutant {
        name: "sweep_ignores_state_sqlite",
        breaks: "A sweep deletes markers that do not say done, on SQLite.",
        tests: &["test(=in_a_file::a_sweep_leaves_what_is_not_done)"],
    },
    Mutant {
        name: "sweep_ignores_state_postgres",
        breaks: "A sweep deletes markers that do not say done, on PostgreSQL.",
        tests: &["test(=as_owner::a_sweep_leaves_what_is_not_done)"],
    },
    Mutant {
        name: "accept_marker_swept_before_its_message_sqlite",
        breaks: "The marker of an accepted message is deleted while the message still exists, on SQLite.",
        tests: &["test(=in_a_file::what_all_handlers_have_passed_is_pruned_after_its_time)"],
    },
    Mutant {
        name: "accept_marker_swept_before_its_message_postgres",
        breaks: "The marker of an accepted message is deleted while the message still exists, on PostgreSQL.",
        tests: &["test(=as_owner::what_all_handlers_have_passed_is_pruned_after_its_time)"],
    },
    Mutant {
        name: "mover_forgets_open_transactions",
        breaks: "The mover passes over transactions that were open when it looked.",
        tests: &["test(=outbox::messages_of_a_transaction_that_commits_later_are_moved)"],
    },
    Mutant {
        name: "window_advances_unanswered",
        breaks: "The mover passes over messages after a move without an answer.",
        tests: &["test(=as_owner::a_move_whose_answer_was_lost_loses_and_doubles_nothing)"],
    },
    Mutant {
        name: "relay_settles_without_fence",
        breaks: "A relay writes its progress although its lease has ended.",
        tests: &[
            "test(=in_a_file::a_lane_has_one_lease_and_its_fence_decides)",
            "test(=as_owner::a_lane_has_one_lease_and_its_fence_decides)",
            "test(=outbox_stopped::on_sqlite::a_relay_that_was_stopped_past_its_lease_changes_nothing)",
            "test(=outbox_stopped::on_postgres::a_relay_that_was_stopped_past_its_lease_changes_nothing)",
        ],
    },
    Mutant {
        name: "relay_sends_two_of_a_key",
        breaks: "A relay sends a message although an earlier one of its ordering key is not confirmed.",
        tests: conformance!("a_relay_keeps_the_order_of_each_ordering_key"),
    },
    Mutant {
        name: "unknown_verdict_counts_as_confirmed",
        breaks: "A relay takes a message as sent although its confirmation was lost.",
        tests: conformance!("planned_publishing_agrees_with_the_model"),
    },
    Mutant {
        name: "unknown_verdict_spends_attempt",
        breaks: "A lost confirmation counts as a failed attempt.",
        tests: conformance!("planned_publishing_agrees_with_the_model"),
    },
    Mutant {
        name: "relay_skips_past_unconfirmed",
        breaks: "The progress of a relay passes messages without a verdict.",
        tests: conformance!("planned_publishing_agrees_with_the_model"),
    },
    Mutant {
        name: "relay_keeps_sending_without_heartbeat",
        breaks: "A relay sends although its last heartbeat is so old that others may have its lanes.",
        tests: on_every_store!("outbox_outage", "a_relay_without_heartbeats_stops_sending"),
    },
    Mutant {
        name: "confirmed_memory_survives_replay",
        breaks: "A replay does not send messages that were confirmed behind one without a verdict.",
        tests: on_every_store!("outbox_outage", "a_replay_sends_what_was_confirmed_behind_a_missing_verdict"),
    },
    Mutant {
        name: "leased_lane_is_not_released_after_error",
        breaks: "A relay keeps the lease of a lane whose progress it could not write.",
        tests: on_every_store!("outbox_outage", "a_lane_whose_progress_cannot_be_written_is_released"),
    },
    Mutant {
        name: "prune_ignores_keep_sent_sqlite",
        breaks: "Sent messages are deleted although their relay keeps them for a replay, on SQLite.",
        tests: &["test(=in_a_file::sent_messages_can_be_replayed_while_they_are_kept)"],
    },
    Mutant {
        name: "prune_ignores_keep_sent_postgres",
        breaks: "Sent messages are deleted although their relay keeps them for a replay, on PostgreSQL.",
        tests: &["test(=as_owner::sent_messages_can_be_replayed_while_they_are_kept)"],
    },
    Mutant {
        name: "downtime_counts",
        breaks: "Markers and messages expire while no process runs.",
        tests: &[
            "test(=in_a_file::downtime_expires_nothing)",
            "test(=as_owner::downtime_expires_nothing)",
            "test(=in_a_file::downtime_prunes_nothing)",
            "test(=as_owner::downtime_prunes_nothing)",
        ],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    /// The quoted names after `before` in all sources of a folder.
    fn names_behind(before: &[&str], folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                names_behind(before, &path, names);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(path).unwrap();
                let named = before.iter().flat_map(|before| text.split(before).skip(1));
                names.extend(named.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }

    #[test]
    fn the_mutants_of_the_code_are_those_of_the_table() {
        let mut in_code = BTreeSet::new();
        for package in ["oncebox-core", "oncebox-sqlite", "oncebox-postgres"] {
            let sources = root().join("crates").join(package).join("src");
            names_behind(&["mutant!(\"", "mutant: \""], &sources, &mut in_code);
        }
        // The mutant of the switch's own test.
        in_code.remove("none_of_the_list");
        let in_table: BTreeSet<String> = MUTANTS.iter().map(|mutant| mutant.name.to_owned()).collect();
        assert_eq!(in_code, in_table);
        assert_eq!(in_table.len(), MUTANTS.len(), "each name once");
    }

    #[test]
    fn the_documented_table_is_the_code_s() {
        let document = fs::read_to_string(root().join("docs/mutants.md")).unwrap();
        for Mutant { name, breaks, tests } in MUTANTS {
            let row = document.lines().find(|line| line.starts_with(&format!("| `{name}` | {breaks} |")));
            let row = row.unwrap_or_else(|| panic!("docs/mutants.md has no row for {name}"));
            for tests in *tests {
                let (_, test) = tests.trim_end_matches(')').rsplit_once("::").unwrap();
                let test = test.split(')').next().unwrap();
                assert!(row.contains(test), "docs/mutants.md: the row of {name} lacks {test}");
            }
        }
        let rows = document.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, MUTANTS.len(), "docs/mutants.md has rows without a mutant");
    }
}
