-- Deletes a bounded batch of old accept markers whose messages are pruned, oldest first, along
-- oncebox_marker_accepted.
delete from oncebox_marker
where (handler, kind, key) in (
    select a.handler, a.kind, a.key from oncebox_marker a
    where a.state = 'accepted' and a.processed_at < ?1
      and not exists (select 1 from oncebox_message m where m.lane = a.lane and m.pos = a.pos)
    order by a.processed_at
    limit ?2
)
