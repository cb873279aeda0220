-- Of the progress in lane ?1, only the newest matters; the rest tells when messages were done, for as long as these are
-- kept, which is from ?2 on.
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
)
delete from oncebox_progress
where (handler, lane, epoch, pos) in (
    select p.handler, p.lane, p.epoch, p.pos
    from newest
    cross join oncebox_progress p
        on p.handler = newest.handler and p.lane = ?1
        and (p.epoch, p.pos) < (newest.epoch, newest.pos)
    where p.at < ?2
)
