//! How statements are broken on purpose; see [`oncebox_core::mutant`].

use oncebox_core::mutant::Edit;

/// Every statement that a mutant changes.
pub(crate) const EDITS: &[Edit] = &[
    Edit { mutant: "unfenced_completion_sqlite", text: "end_task", from: "fence = ?4", to: "?4 = ?4" },
    Edit { mutant: "unfenced_completion_sqlite", text: "retry_task", from: "fence = ?4", to: "?4 = ?4" },
    Edit {
        mutant: "unfenced_completion_sqlite",
        text: "dead_letter_task",
        from: "t.fence = ?4",
        to: "?4 = ?4",
    },
    Edit {
        mutant: "accept_without_kind_sqlite",
        text: "find_accepted",
        from: "m.kind = wanted.value ->> 0 and ",
        to: "",
    },
    Edit {
        mutant: "newest_message_pruned_sqlite",
        text: "prune",
        from: "and looked.pos < (select m.pos",
        to: "and looked.pos <= (select m.pos",
    },
    Edit { mutant: "lane_takes_targeted_sqlite", text: "take", from: " and m.target is null\n", to: "\n" },
    Edit {
        mutant: "lease_by_the_process_s_clock_sqlite",
        text: "remove_crashed",
        from: "cast(unixepoch('subsec') * 1000 as integer) + ?2",
        to: "cast(unixepoch('subsec') * 1000 as integer) + 0 * ?2",
    },
    Edit {
        mutant: "sweep_ignores_state_sqlite",
        text: "sweep",
        from: "where state = 'done' and processed_at <",
        to: "where processed_at <",
    },
    Edit {
        mutant: "accept_marker_swept_before_its_message_sqlite",
        text: "sweep_accepted",
        from: "      and not exists (select 1 from oncebox_message m where m.lane = a.lane and m.pos = a.pos)\n",
        to: "",
    },
    Edit {
        mutant: "prune_ignores_keep_sent_sqlite",
        text: "prune",
        from: "else cast(unixepoch('subsec') * 1000 as integer) + ?5 - h.keep_ms\n        end as keep_from",
        to: "else 9223372036854775807\n        end as keep_from",
    },
    Edit {
        mutant: "dead_letter_run_unasked_sqlite",
        text: "choose_dead",
        from: "and k.state = 'done'\n    ) as is_done",
        to: "and k.state = 'done' and false\n    ) as is_done",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statements::unedited;

    #[test]
    fn every_edit_finds_its_text() {
        for edit in EDITS {
            let text = unedited(edit.text).unwrap();
            assert_ne!(edit.apply(text), text, "{}", edit.mutant);
        }
    }
}
