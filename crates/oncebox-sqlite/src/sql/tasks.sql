-- Messages set apart, for one handler or all, the next first, and what each waits for.
select
    h.name, t.lane, t.pos, m.kind, m.key, m.long_key, t.failures, t.due_at, t.error,
    case
        when t.owner is not null then 'running'
        when t.scheduled and t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?3 then 'scheduled'
        when h.ordered is not null and (
            exists (
                select 1 from oncebox_task earlier
                where earlier.handler = t.handler and earlier.lane = t.lane and earlier.order_by = t.order_by
                  and earlier.pos < t.pos and not (
                    earlier.scheduled and earlier.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?3
                  )
            )
            or h.ordered = 'hold' and exists (
                select 1 from oncebox_dead earlier
                where earlier.handler = t.handler and earlier.lane = t.lane and earlier.order_by = t.order_by
                  and earlier.pos < t.pos
            )
        ) then 'parked'
        else 'turn'
    end
from oncebox_task t
cross join oncebox_handler h on h.id = t.handler
cross join oncebox_message m on m.lane = t.lane and m.pos = t.pos
where ?1 is null or h.name = ?1
order by t.due_at, t.handler, t.lane, t.pos
limit ?2
