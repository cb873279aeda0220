-- Messages of lane ?1 behind ?2 and up to ?3, of the kinds in a JSON array ?4: at most ?5 of them, ending
-- with the one that exceeds ?6 bytes of bodies; in no order, which would copy the bodies once more. For handler ?8,
-- which is ordered as ?9 says, and runs again on what is behind ?10 and up to ?11. The last column tells how many
-- there were before the bytes were looked at.
with found as materialized (
    select near.pos, sum(near.bytes) over (
        order by near.pos rows between unbounded preceding and 1 preceding
    ) as bytes_before
    from (
        select m.pos, length(m.body) as bytes from oncebox_message m
        where m.lane = ?1 and m.pos > ?2 and m.pos <= ?3 and m.target is null
          and m.kind in (select value from json_each(?4))
        order by m.pos
        limit ?5
    ) as near
)
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?7), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?7 - m.received_at, 0), 0, null, 0,
    ?9 is not null and m.order_by is not null and (
        exists (
            select 1 from oncebox_task t
            where t.handler = ?8 and t.lane = ?1 and t.order_by = m.order_by and t.pos < m.pos
              and not (t.scheduled and t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?7)
        )
        or ?9 = 'hold' and exists (
            select 1 from oncebox_dead d
            where d.handler = ?8 and d.lane = ?1 and d.order_by = m.order_by and d.pos < m.pos
        )
    ),
    coalesce(m.pos > ?10 and m.pos <= ?11, 0), 0, 0,
    (select count(*) from found)
from found
cross join oncebox_message m on m.lane = ?1 and m.pos = found.pos
where coalesce(found.bytes_before, 0) < max(?6, 1)
