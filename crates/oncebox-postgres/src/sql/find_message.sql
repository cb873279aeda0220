-- Where a message sits, by its accept marker.
select lane, pos from "{schema}".marker where handler = '@accept' and kind = $1 and key = $2 and pos is not null
