-- Lock rows of a handler in every lane, and, where it reads the log ($3), its first progress: from the beginning, or behind what
-- is there now.
with lanes as (
    select l.lane, case when $2 then coalesce((
        select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
    ), 0) else 0 end as pos
    from "{schema}".lane l
    where l.handler = 0
), locks as (
    insert into "{schema}".lane (handler, lane) select $1, lane from lanes on conflict do nothing
)
insert into "{schema}".progress (handler, lane, epoch, pos) select $1, lane, 0, pos from lanes where $3
