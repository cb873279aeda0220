-- Waits for lanes of handlers: their tasks change under the lane's lock, and a lease whose commit is still under way is seen.
select l.lane from "{schema}".lane l
where (l.handler, l.lane) in (select v.handler, v.lane from unnest($1::int4[], $2::int4[]) as v(handler, lane))
order by l.handler, l.lane
for update
