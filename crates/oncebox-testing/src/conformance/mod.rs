//! The conformance suite: one set of behaviours for every store.
//!
//! A store passes if it does what its [`Capabilities`] say. Give [`conformance!`](crate::conformance!) a function
//! that makes a [`Fixture`], and run the tests that it writes.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]

mod claims;
mod effects;
mod keys;
mod log;
mod messages;
mod migrations;
mod outbox;
mod relay;
mod retention;
mod sql;
mod stored;
mod stored_accept;
mod stored_care;
mod stored_crashes;
mod stored_detached;
mod stored_failures;
mod stored_modes;
mod stored_neighbours;
mod stored_operate;
mod stored_operators;
mod stored_order;
mod stored_registry;
mod stored_retention;
mod stored_running;
mod stored_spill;
mod stored_survey;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use oncebox_core::store::{Limits, Store, Unit};
use oncebox_core::{BoxError, InboxStore, Json, Key, Message};
use serde::{Deserialize, Serialize};

pub use claims::*;
pub use effects::*;
pub use keys::*;
pub use log::*;
pub use messages::*;
pub use migrations::*;
pub use outbox::*;
pub use relay::*;
pub use retention::*;
pub use sql::*;
pub use stored::*;
pub use stored_accept::*;
pub use stored_care::*;
pub use stored_crashes::*;
pub use stored_detached::*;
pub use stored_failures::*;
pub use stored_modes::*;
pub use stored_neighbours::*;
pub use stored_operate::*;
pub use stored_operators::*;
pub use stored_order::*;
pub use stored_registry::*;
pub use stored_retention::*;
pub use stored_running::*;
pub use stored_spill::*;
pub use stored_survey::*;

pub use crate::model::{
    every_transition_happens, planned_publishing_agrees_with_the_model,
    random_operations_agree_with_the_model, random_publishing_agrees_with_the_model,
};

/// The capabilities that a store declares.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Handlers write in the marker's own transaction, so that a failure undoes what they wrote.
    pub transactional: bool,
    /// Time with no live process does not count as retention.
    pub counts_live_time: bool,
    /// Implements [`Care`](oncebox_core::store::Care) itself: finds the message that crashes its process. `false` for a store
    /// that keeps the trait's defaults. Of interest for stores with a log only.
    pub counts_crashes: bool,
}

/// A future on the heap, as hooks of a [`Fixture`] take it.
pub type BoxFuture<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// The code that a hook of a [`Fixture`] runs on the connection of a transaction.
pub type TransactionBody<C> = Box<dyn for<'c> FnOnce(&'c mut C) -> BoxFuture<'c, ()> + Send>;

/// A row of the view in which the log looks like an inbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// The key as text.
    pub id: Option<String>,
    /// Whether all handlers are done with the message.
    pub is_processed: bool,
    /// The error of its dead letter or task.
    pub error: Option<String>,
}

/// A store under test, with a place for effects.
pub trait Fixture: Clone + Send + Sync + 'static {
    /// The store.
    type Store: InboxStore;

    /// The capabilities of the store.
    fn capabilities(&self) -> Capabilities;

    /// The store: migrated, empty, the same one at every call.
    fn store(&self) -> Self::Store;

    /// Writes down one effect, as a handler would. Must **not** be unique by name: the suite counts.
    fn effect(
        &self,
        conn: &mut <Self::Store as Store>::Conn,
        name: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// How many effects of that name there are.
    fn effects(&self, name: &str) -> impl Future<Output = u64> + Send;

    /// Moves the store's clock forward.
    fn travel(&self, time: Duration);

    /// Closes the store and opens it again, as a restarted process does. `None` if the store keeps nothing that long.
    fn reopen(&self) -> impl Future<Output = Option<Self>> + Send {
        async { None }
    }

    /// Runs `body` in a transaction of the application's own, without an inbox, then commits it or rolls it back. `false`, and
    /// nothing runs, if the store has no transaction to share.
    fn transaction(
        &self,
        commits: bool,
        body: TransactionBody<<Self::Store as Store>::Conn>,
    ) -> impl Future<Output = bool> + Send {
        drop(body);
        let _ = commits;
        async { false }
    }

    /// Changes the name of the lane hash that the log was created with, as a version with another hash would have. `false` if
    /// there is no log.
    fn change_lane_hash(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// The view in which the log looks like an inbox table, in the order of positions. `None` if the store has no such view.
    fn inbox_view(&self) -> impl Future<Output = Option<Vec<InboxRow>>> + Send {
        async { None }
    }
}

/// Writes one test per behaviour.
///
/// The argument is an async function `fn(test_name: &str) -> Option<impl Fixture>`; `None` skips the test, after the
/// function has said why. `stored` writes the behaviours of stores with a log, `outbox` those of stores with an
/// outbox, `sql` those of a [`SqlFixture`] and
/// `migrating` those of a [`MigratingFixture`].
#[macro_export]
macro_rules! conformance {
    ($fixture:path) => {
        $crate::conformance! { @tests $fixture;
            a_key_is_fresh_once
            a_claim_that_is_rolled_back_is_free_again
            a_dropped_transaction_frees_its_claim
            a_copy_waits_for_the_first_and_is_a_duplicate_when_that_commits
            a_copy_takes_over_when_the_first_rolls_back
            a_copy_waits_no_longer_than_its_time_limit
            handler_kind_and_key_all_count
            a_batch_of_claims_answers_in_order
            a_unit_that_is_undone_leaves_its_neighbours_alone
            results_come_back_with_the_marker
            imported_keys_are_known
            the_marker_tells_when_and_what
            keys_compare_byte_by_byte
            names_may_have_quotes
            copies_at_once_take_effect_once
            a_claim_joins_a_transaction_of_the_user
            what_was_done_is_still_known_after_a_restart
            a_handler_that_waits_outside_the_database_times_out_too
            a_failed_handler_leaves_nothing_and_runs_again
            a_panicking_handler_leaves_nothing_and_runs_again
            a_crash_before_commit_leaves_nothing
            a_crash_after_commit_is_a_duplicate
            a_caller_that_goes_away_leaves_nothing
            three_handlers_of_one_message_run_once_each
            another_body_under_a_known_key_is_reported
            a_megabyte_goes_through
            once_keeps_its_result
            a_call_gives_its_reply_to_copies_too
            a_handler_cannot_call_its_own_inbox
            a_sweep_deletes_what_is_due_in_bounded_batches
            downtime_expires_nothing
            a_duplicate_during_a_sweep_is_still_a_duplicate
        }
    };
    (stored $fixture:path) => {
        $crate::conformance! { @tests $fixture;
            what_is_accepted_runs_once_for_each_handler
            copies_at_once_are_accepted_once
            a_failed_message_runs_again_and_its_neighbours_do_not
            a_message_that_keeps_failing_is_a_dead_letter
            another_body_under_an_accepted_key_is_reported
            an_accepted_key_counts_for_its_kind_only
            a_message_without_a_key_is_refused_or_taken_each_time
            the_source_s_id_is_a_key
            a_body_that_is_too_large_is_refused_and_the_largest_goes_through
            equal_keys_in_one_call_are_accepted_once
            messages_of_one_ordering_key_sit_in_one_lane_in_order
            what_travels_with_a_message_reaches_its_handler
            imported_keys_are_accepted_already
            a_stored_handler_cannot_call_its_own_inbox
            a_permanent_failure_is_a_dead_letter_at_once
            a_body_that_cannot_be_decoded_does_not_stop_its_lane
            a_panic_is_a_failure_like_others
            a_retry_after_waits_for_its_time_and_runs_once
            a_scheduled_message_waits_for_its_time_and_runs_once
            attempts_are_counted_durably
            waits_between_attempts_double_to_their_limit
            a_poisoned_message_in_a_set_dies_alone
            a_handler_that_hangs_fails_alone
            neighbours_of_failing_messages_run_once
            dead_letters_are_selected_by_what_they_have
            one_dead_letter_is_corrected_at_a_time
            discarded_letters_never_run
            letters_that_were_resolved_count_as_done
            a_dead_letter_that_is_run_again_has_all_its_attempts
            a_dead_letter_is_found_by_its_own_time
            the_audit_says_what_was_done_with_a_dead_letter
            a_culprit_is_found_while_another_lane_is_busy
            tasks_run_while_there_is_a_backlog
            a_straggler_passes_over_nothing
            a_rule_that_panics_does_not_stop_its_lane
            a_new_handler_begins_at_the_beginning_or_now
            a_name_keeps_its_kinds_and_its_mode
            each_mode_has_its_own_way_in
            a_removed_handler_s_name_stays_taken_until_it_is_revived
            what_a_removed_handler_left_behind_goes_with_it
            the_number_of_lanes_is_fixed_when_the_log_is_made
            inboxes_that_start_at_once_agree
            what_all_handlers_have_passed_is_pruned_after_its_time
            what_a_handler_still_needs_is_not_pruned
            downtime_prunes_nothing
            messages_may_be_kept_for_longer_than_markers
            old_messages_go_by_themselves
            lag_says_what_is_ahead_of_a_handler
            a_handler_with_nothing_ahead_has_no_oldest_message
            every_message_says_what_became_of_it
            a_message_is_found_by_kind_and_key
            unhandled_kinds_are_reported
            a_worker_that_dies_leaves_its_messages_to_others
            a_worker_that_dies_with_tasks_in_flight_loses_none
            an_accept_whose_answer_was_lost_is_a_duplicate_when_repeated
            a_caller_of_accept_that_goes_away_can_come_back
            workers_in_one_lane_take_turns_without_an_error
            workers_take_what_comes_in
            workers_that_are_stopped_while_they_begin_leave_no_process_behind
            what_another_process_accepts_is_found
            what_another_process_announces_is_found
            what_is_in_flight_at_shutdown_is_finished
            closing_the_inbox_ends_its_workers
            closing_inboxes_leaves_the_store_as_it_is
            workers_that_cannot_work_fail_the_health_until_they_can
            at_most_once_of_an_inline_inbox_is_run_again_by_operators
            a_paused_handler_waits_until_it_is_resumed
            a_replay_runs_a_handler_again
            a_replay_begins_at_a_time_or_a_place
            a_replay_absorbs_tasks_and_dead_letters
            a_replay_may_be_replayed
            a_replayed_message_that_fails_is_tried_again_as_a_replay
            a_renamed_handler_goes_on_under_its_new_name
            a_renamed_inline_handler_knows_its_keys
            the_audit_says_what_was_done_with_a_handler
            an_operation_that_makes_no_sense_is_refused
            a_replay_from_a_pruned_place_begins_with_the_next_message
            what_fails_inline_is_tried_again_from_the_log
            a_sweep_leaves_what_is_not_done
            copies_at_once_are_spilled_once
            what_fails_inline_for_good_is_a_dead_letter
            a_spilled_call_has_its_reply_when_it_is_done
            a_detached_handler_of_an_inline_inbox_runs_later
            a_spilled_message_runs_in_its_handler_alone
            a_spilled_message_is_pruned_when_it_is_done
            a_key_that_comes_both_ways_takes_effect_once
            a_key_that_comes_both_ways_at_once_takes_effect_once
            what_failed_from_the_log_is_a_duplicate_inline
            a_replay_runs_what_its_markers_know
            from_stored_to_mixed_nothing_runs_twice
            to_stored_only_when_inline_keys_are_forgotten
            to_inline_only_when_nothing_waits_in_the_log
            mixed_is_left_when_the_log_has_passed_what_came_inline
            an_older_program_leaves_a_changed_handler_to_the_new_one
            a_replay_that_is_not_over_is_no_reason_to_forget
            a_replay_that_fails_first_ends_with_its_newest_result
            an_ordering_key_keeps_its_order_however_often_its_messages_fail
            only_the_key_of_a_failed_message_waits
            without_order_no_message_waits_for_a_failed_one
            a_dead_letter_holds_its_key_until_it_is_run_again
            a_dead_letter_that_is_resolved_frees_its_key
            a_dead_letter_that_is_skipped_holds_no_message
            a_scheduled_message_holds_its_key_when_it_is_due
            a_set_handler_keeps_the_order_of_keys
            order_needs_the_log
            a_detached_handler_runs_outside_of_transactions
            a_detached_handler_that_keeps_failing_leaves_a_dead_letter
            as_many_detached_bodies_run_at_once_as_may
            a_lane_with_too_many_open_tasks_pauses
            ordered_detached_bodies_run_one_at_a_time
            scheduled_messages_do_not_pause_a_lane
            at_most_once_is_never_tried_again_by_itself
            a_scheduled_message_runs_detached_at_its_time
            a_detached_handler_says_that_it_is_one
            a_lost_lease_is_reported_and_does_not_count
            what_a_process_ran_when_it_crashed_runs_again
            a_detached_message_of_which_processes_keep_dying_is_a_dead_letter
            messages_in_flight_in_two_crashes_run_one_by_one
            an_out_of_process_message_runs_after_any_number_of_crashes
            where_two_processes_crashed_messages_run_one_by_one
            where_two_processes_crashed_tasks_run_one_by_one
            a_process_with_an_outdated_handler_is_asked_to_restart
            an_ordering_key_of_any_length_keeps_its_order
            of_many_failed_attempts_the_first_and_the_last_are_kept
            what_is_beyond_a_limit_is_rejected
            crashes_with_progress_in_between_are_no_reason_for_care
            a_process_that_was_seen_to_end_is_removed_at_once
            a_message_of_which_processes_keep_dying_is_a_dead_letter
            a_process_that_leaves_causes_no_care
            a_note_that_is_given_back_counts_for_nothing
            random_operations_agree_with_the_model
            every_transition_happens
            positions_have_no_gaps_and_known_keys_get_none
            a_large_batch_is_appended_whole_and_known_whole
            a_message_is_read_back_as_it_was_appended
            imported_keys_are_known_without_a_place
            a_lane_that_does_not_exist_is_refused
            a_batch_is_taken_again_until_it_is_finished
            limits_end_a_batch
            a_lane_with_too_many_open_tasks_gives_no_messages
            a_look_finds_messages_and_due_tasks
            a_failed_message_becomes_a_task_and_a_dead_letter_with_its_history
            a_scheduled_message_has_no_history
            tasks_are_taken_the_longest_due_first
            only_tasks_of_one_ordering_key_wait_for_each_other
            an_unordered_handler_holds_nothing_back
            a_task_in_flight_holds_its_ordering_key
            a_dead_letter_holds_the_tasks_behind_it
            a_skipped_dead_letter_holds_no_task
            a_scheduled_task_holds_its_ordering_key_when_it_is_due
            tasks_behind_one_that_cannot_run_wait
            messages_behind_a_task_of_their_ordering_key_are_held
            messages_behind_a_skipped_dead_letter_are_not_held
            a_handler_may_change_what_dead_letters_hold
            the_next_due_time_is_that_of_a_task_that_can_run
            free_tasks_are_found_behind_many_parked_ones
            free_tasks_are_found_behind_skipped_dead_letters
            free_tasks_are_found_among_many_due_ones
            only_the_newest_fence_ends_a_task
            fences_only_grow
            a_failed_lease_keeps_what_its_task_had
            a_completed_lease_settles_its_spilled_marker
            a_handler_that_spills_has_tasks_without_progress
            a_process_is_known_while_it_is_at_work
            a_process_that_leaves_frees_its_tasks
            a_crashed_process_is_removed_once_when_its_lease_has_expired
            every_crash_behind_a_note_counts
            care_ends_with_the_last_suspect_message
            no_care_is_needed_where_nothing_waited
            a_later_crash_does_not_shorten_care
            a_note_is_forgotten_with_the_commit
            the_first_copy_is_spilled_and_the_next_is_known
            without_a_marker_every_copy_is_spilled
            a_known_copy_has_the_result_of_the_first
            a_message_with_no_attempts_left_is_spilled_as_a_dead_letter
            a_spilled_message_is_done_when_its_dead_letter_is_discarded
            a_spilled_message_is_done_when_its_dead_letter_is_marked
            a_spilled_dead_letter_runs_again_unless_its_marker_is_done
            nothing_is_spilled_for_a_removed_handler
            a_spill_behind_a_running_copy_is_busy
            a_spilled_message_is_for_its_handler_alone
            pruning_does_not_wait_for_a_handler_that_spills
            spilled_markers_are_done_when_their_handler_is_removed
            a_mixed_handler_s_lane_passes_spilled_messages
            from_inline_to_mixed_a_handler_starts_where_it_is_told
            a_handler_stops_spilling_when_it_has_no_tasks
            from_stored_to_mixed_passed_messages_are_marked
            from_mixed_to_stored_no_inline_key_is_forgotten
            from_mixed_to_inline_no_message_may_wait
            a_refused_change_of_mode_writes_nothing
            a_handler_cannot_change_between_inline_and_stored
            a_replay_from_a_place_goes_back_in_its_lane
            a_replay_from_the_beginning_starts_with_the_oldest_message_left
            a_replay_from_a_time_starts_with_the_first_message_since
            a_replay_within_a_replay_is_still_one
            a_replay_leaves_spilled_messages_alone
            a_handler_that_does_not_read_the_log_cannot_be_replayed
            a_refused_registration_writes_nothing
            without_a_log_there_are_no_lanes
            a_handler_starts_in_every_lane_where_it_is_told
            a_new_handler_s_name_is_its_first_name
            a_revived_handler_starts_again
            a_paused_handler_gets_no_work
            an_inline_handler_cannot_be_paused
            a_renamed_handler_keeps_what_it_has
            a_handler_cannot_take_a_name_that_was_another_s
            a_removed_handler_leaves_nothing_behind
            every_action_on_a_dead_letter_is_audited
            a_correction_stays_when_the_message_dies_again
            an_action_takes_the_first_dead_letters_up_to_its_limit
            a_survey_reports_handlers_and_messages
            an_unhandled_kind_is_reported_until_a_handler_reads_it
            a_survey_reports_what_each_task_waits_for
            only_messages_that_all_handlers_have_passed_are_pruned
            messages_are_pruned_by_the_time_they_were_received
            accept_markers_outlive_their_messages
            a_log_with_another_hash_is_refused
            a_spilled_message_is_processed_in_the_inbox_view_when_its_task_is_done
        }
    };
    (outbox $fixture:path) => {
        $crate::conformance! { @tests $fixture;
            a_published_message_is_delivered_once_after_the_commit
            a_transaction_that_rolls_back_publishes_nothing
            published_messages_keep_their_order
            what_travels_with_a_published_message_reaches_its_handler
            a_published_copy_of_a_known_key_is_delivered_once
            a_published_message_without_a_key_has_its_id
            a_message_that_cannot_be_published_is_refused
            movers_at_once_move_each_message_once
            copies_published_and_accepted_at_once_take_effect_once
            a_move_whose_answer_was_lost_loses_and_doubles_nothing
            the_mover_of_an_inbox_runs_beside_its_workers
            more_messages_than_one_move_takes_are_moved_in_order
            an_inline_handler_publishes_with_its_effect
            a_stored_handler_publishes_with_its_effect
            a_detached_handler_publishes_with_its_outcome
            a_detached_run_without_its_lease_publishes_nothing
            a_handler_that_publishes_needs_an_outbox
            published_messages_continue_the_trace_of_their_cause
            a_published_message_is_found_by_its_id
            a_process_that_moves_is_known_as_such
            a_relay_sends_published_messages_of_its_kinds
            what_travels_with_a_published_message_reaches_the_sink
            a_relay_keeps_the_order_of_each_ordering_key
            a_message_that_the_sink_refuses_becomes_a_dead_letter
            a_dead_letter_of_a_relay_can_be_skipped_or_discarded
            an_outage_of_the_sink_spends_no_attempts
            one_message_without_a_verdict_does_not_stop_its_lane
            a_broken_sink_has_confirmed_nothing
            a_scheduled_message_is_sent_when_it_is_due
            refused_messages_stop_their_lane_at_a_limit
            sent_messages_can_be_replayed_while_they_are_kept
            an_outbox_without_an_inbox_deletes_what_it_has_sent
            several_relays_and_handlers_read_the_same_messages
            processes_share_the_lanes_of_a_relay
            a_relay_whose_progress_was_lost_sends_again
            a_relay_continues_after_an_outage_longer_than_its_lease
            a_relay_can_be_paused_and_removed
            unsent_messages_of_a_relay_are_listed_oldest_first
            a_relay_and_a_handler_have_different_names
            a_lane_has_one_lease_and_its_fence_decides
            an_operation_on_a_relay_ends_its_leases
            planned_publishing_agrees_with_the_model
            random_publishing_agrees_with_the_model
        }
    };
    (sql $fixture:path) => {
        $crate::conformance! { @tests $fixture;
            whatever_a_handler_does_to_its_transaction_there_is_no_half_effect
            nested_transactions_are_savepoints
        }
    };
    (migrating $fixture:path) => {
        $crate::conformance! { @tests $fixture;
            twenty_starters_at_once_migrate_once
            a_build_on_an_empty_database_says_what_to_do_and_alters_nothing
            the_version_there_and_the_one_needed_can_be_asked_for
            the_printed_sql_is_all_that_is_needed
            a_database_from_the_future_is_refused
        }
    };
    (@tests $fixture:path; $($behaviour:ident)*) => {
        $(
            // Not a current-thread runtime: the model test uses `block_in_place`, which panics on one.
            #[$crate::__private::tokio::test(
                flavor = "multi_thread", worker_threads = 2, crate = "oncebox_testing::__private::tokio"
            )]
            async fn $behaviour() {
                if let Some(fixture) = $fixture(stringify!($behaviour)).await {
                    $crate::conformance::$behaviour(fixture).await;
                }
            }
        )*
    };
}

/// The message that the suite sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) text: String,
}

impl Sample {
    pub(crate) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), text: String::new() }
    }
}

impl Message for Sample {
    const KIND: &'static str = "sample";
    type Codec = Json;

    fn key(&self) -> Option<Key> {
        Some(Key::from(&self.id))
    }
}

pub(crate) fn unit(handler: &str, kind: &str, key: impl Into<Key>) -> Unit {
    Unit {
        handler: handler.to_owned(),
        kind: kind.to_owned(),
        key: key.into().stored(),
        fingerprint: None,
        waited: Duration::ZERO,
    }
}

/// Long enough for anything that the suite waits for; a limit, not a measure.
pub(crate) const LIMITS: Limits = Limits {
    lock_timeout: Duration::from_secs(120),
    body_lock_timeout: None,
    handler_timeout: Duration::from_secs(120),
};
