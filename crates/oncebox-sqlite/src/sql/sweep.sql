-- Deletes a bounded batch of old done markers, oldest first, along oncebox_marker_processed.
delete from oncebox_marker
where (handler, kind, key) in (
    select handler, kind, key from oncebox_marker
    where state = 'done' and processed_at < ?1
    order by processed_at
    limit ?2
)
returning handler, kind, key
