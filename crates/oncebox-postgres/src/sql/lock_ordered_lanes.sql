-- Waits for the lanes of those handlers that are ordered: their tasks change under the lane's lock only.
select l.lane from "{schema}".lane l
where (l.handler, l.lane) in (select v.handler, v.lane from unnest($1::int4[], $2::int4[]) as v(handler, lane))
  and exists (select from "{schema}".handler h where h.id = l.handler and h.ordered is not null)
order by l.handler, l.lane
for update
