-- Fixes the number of lanes and makes their lock rows: for the appender and for upkeep. One of all who start makes them.
with made as (
    insert into "{schema}".layout (lanes, hash) values ($1, $2)
    on conflict do nothing
    returning lanes
)
insert into "{schema}".lane (handler, lane)
select reserved.handler, lane.number
from made
cross join generate_series(0, made.lanes - 1) as lane(number)
cross join (values (0), (-1)) as reserved(handler)
