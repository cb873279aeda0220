-- Of the progress, only the newest matters; what it passed tells when messages that are still there were
-- done.
with newest as materialized (
    select
        h.id as handler,
        (
            select p.epoch from oncebox_progress p
            where p.handler = h.id and p.lane = ?1
            order by p.epoch desc, p.pos desc limit 1
        ) as epoch,
        (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = ?1
            order by p.epoch desc, p.pos desc limit 1
        ) as pos
    from oncebox_handler h
), oldest as materialized (
    select coalesce((
        select m.pos from oncebox_message m where m.lane = ?1 order by m.pos limit 1
    ), 0) as pos
)
delete from oncebox_progress
where (handler, lane, epoch, pos) in (
    select p.handler, p.lane, p.epoch, p.pos
    from newest
    cross join oldest
    cross join oncebox_progress p
        on p.handler = newest.handler and p.lane = ?1
        and (p.epoch, p.pos) < (newest.epoch, min(newest.pos, oldest.pos))
)
