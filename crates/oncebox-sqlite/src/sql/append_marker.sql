-- Marks a key as accepted. The last line is repeated for more of them; so the parameters have no numbers. In
-- order: kind, key, long key, fingerprint, received, accepted, lane, position.
insert into oncebox_marker (
    handler, kind, key, long_key, fingerprint, state, received_at, processed_at, lane, pos
)
values ('@accept', ?, ?, ?, ?, 'accepted', ?, ?, ?, ?)
