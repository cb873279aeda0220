-- Waits until nobody works in any lane of a handler.
select l.lane from "{schema}".lane l
where l.handler = (select h.id from "{schema}".handler h where h.name = $1)
order by l.lane
for update
