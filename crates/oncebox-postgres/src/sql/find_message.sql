-- Where a message sits, by its accept marker; no row for one that was pruned.
select m.lane, m.pos from "{schema}".marker m
where m.handler = '@accept' and m.kind = $1 and m.key = $2
  and exists (select from "{schema}".message g where g.lane = m.lane and g.pos = m.pos)
