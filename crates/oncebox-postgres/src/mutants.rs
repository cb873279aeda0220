//! How statements are broken on purpose; see [`oncebox_core::mutant`].

use oncebox_core::mutant::Edit;

/// Every statement that a mutant changes.
pub(crate) const EDITS: &[Edit] = &[
    Edit {
        mutant: "unsorted_claims",
        text: "claim",
        from: "    order by u.kind collate \"C\", u.key\n",
        to: "",
    },
    Edit {
        mutant: "unfenced_completion_postgres",
        text: "complete",
        from: "on (t.handler, t.lane, t.pos, t.fence) = (v.handler, v.lane, v.pos, v.fence)",
        to: "on (t.handler, t.lane, t.pos) = (v.handler, v.lane, v.pos)",
    },
    Edit {
        mutant: "position_read_with_the_lock",
        text: "0002_log",
        from: "    chosen integer;\n    received timestamptz;",
        to: "    chosen integer;\n    newest bigint;\n    received timestamptz;",
    },
    Edit {
        mutant: "position_read_with_the_lock",
        text: "0002_log",
        from: "        select l.lane into chosen from \"{schema}\".lane l where l.handler = 0 and l.lane = preferred for update;
    end if;
    if chosen is null then",
        to: "        select l.lane, coalesce((
            select m.pos from \"{schema}\".message m where m.lane = preferred order by m.pos desc limit 1
        ), 0)
        into chosen, newest
        from \"{schema}\".lane l where l.handler = 0 and l.lane = preferred for update;
    else
        newest := coalesce((
            select m.pos from \"{schema}\".message m where m.lane = chosen order by m.pos desc limit 1
        ), 0);
    end if;
    if chosen is null then",
    },
    Edit {
        mutant: "position_read_with_the_lock",
        text: "0002_log",
        from: "select coalesce((
                select m.pos from \"{schema}\".message m where m.lane = chosen order by m.pos desc limit 1
            ), 0) as pos",
        to: "select newest as pos",
    },
    // It waits between its snapshot and the lock, where others would have to hit the moment.
    Edit {
        mutant: "progress_read_with_the_lock",
        text: "0002_log",
        from: "    perform from \"{schema}\".lane l where l.handler = taker and l.lane = taken for update skip locked;
    if not found then return; end if;
    -- A straggler",
        to: "    select p.epoch, p.pos into my_epoch, my_pos
    from (select pg_sleep(0.005)::text as done) as waited
    cross join \"{schema}\".lane l
    cross join lateral (
        select p.epoch, p.pos from \"{schema}\".progress p
        where p.handler = taker and p.lane = taken
        order by p.epoch desc, p.pos desc limit 1
    ) as p
    where l.handler = taker and l.lane = taken and waited.done is not null
    for update of l skip locked;
    if not found then return; end if;
    -- A straggler",
    },
    Edit {
        mutant: "progress_read_with_the_lock",
        text: "0002_log",
        from: "    select p.epoch, p.pos into my_epoch, my_pos from \"{schema}\".progress p
    where p.handler = taker and p.lane = taken
    order by p.epoch desc, p.pos desc
    limit 1;
    if not found then return; end if;
",
        to: "",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "0004_nothing_outlives",
        from: "    if current_setting('oncebox.proved', true) is distinct from 'yes'
        and current_query()",
        to: "    if false and current_query()",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "0004_nothing_outlives",
        from: "if pg_current_xact_id_if_assigned()::text is distinct from $1 then",
        to: "if false then",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "commit",
        from: "select \"{schema}\".guard('{transaction_id}', true, decode('{session}', 'hex'));\ncommit;\n",
        to: "commit;\nbegin;\nreset default_transaction_read_only;\ncommit;\n",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "commit_and_begin",
        from: "select \"{schema}\".guard('{transaction_id}', false, decode('{session}', 'hex'));\n",
        to: "",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "finish_and_begin",
        from: "select \"{schema}\".guard('{transaction_id}', false, decode('{session}', 'hex'));\n",
        to: "",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "finish",
        from: "select \"{schema}\".guard('{transaction_id}', true, decode('{session}', 'hex'));\n",
        to: "",
    },
    Edit {
        mutant: "guard_removed_postgres",
        text: "finish",
        from: "commit;\n",
        to: "commit;\nbegin;\nreset default_transaction_read_only;\ncommit;\n",
    },
    Edit {
        mutant: "accept_without_kind_postgres",
        text: "0002_log",
        from: "where m.handler = '@accept' and m.kind = u.kind and m.key = u.key",
        to: "where m.handler = '@accept' and m.key = u.key",
    },
    Edit {
        mutant: "newest_message_pruned_postgres",
        text: "0002_log",
        from: "l.is_old and l.pos < newest",
        to: "l.is_old and l.pos <= newest",
    },
    Edit {
        mutant: "lane_takes_targeted_postgres",
        text: "0002_log",
        from: "m.target is null and m.kind = any (kinds)",
        to: "m.kind = any (kinds)",
    },
    Edit {
        mutant: "lease_by_the_process_s_clock_postgres",
        text: "remove_crashed",
        from: "clock_timestamp() + $2::int8 * interval '1 ms'",
        to: "clock_timestamp() + 0 * $2::int8 * interval '1 ms'",
    },
    Edit {
        mutant: "sweep_ignores_state_postgres",
        text: "sweep",
        from: "where state = 'done' and processed_at <",
        to: "where processed_at <",
    },
    Edit {
        mutant: "accept_marker_swept_before_its_message_postgres",
        text: "sweep_accepted",
        from: "      and not exists (select from \"{schema}\".message g where g.lane = m.lane and g.pos = m.pos)\n",
        to: "",
    },
    Edit {
        mutant: "relay_settles_without_fence",
        text: "settle_range",
        from: "l.fence = $3 and l.process is not null",
        to: "$3::int8 is not null",
    },
    Edit {
        mutant: "prune_ignores_keep_sent_postgres",
        text: "0002_log",
        from: "coalesce(clock_timestamp() + offset_ms * interval '1 ms' - h.keep, 'infinity') as keep_from",
        to: "'infinity'::timestamptz as keep_from",
    },
    Edit {
        mutant: "dead_letter_run_unasked_postgres",
        text: "act_on_dead",
        from: "and k.state = 'done'\n        ) as is_done",
        to: "and k.state = 'done' and false\n        ) as is_done",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::MIGRATIONS;
    use crate::statements::unedited;

    #[test]
    fn every_edit_finds_its_text() {
        for edit in EDITS {
            let migration = MIGRATIONS.iter().find(|(file, _)| *file == edit.text).map(|(_, step)| *step);
            let text = migration.or_else(|| unedited(edit.text)).unwrap();
            assert_ne!(edit.apply(text), text, "{}", edit.mutant);
        }
    }
}
