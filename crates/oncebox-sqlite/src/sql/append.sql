-- Appends a message. The last line is repeated for more of them; so the parameters have no numbers. In order:
-- lane, position, kind, key, long key, ordering key, target, headers, occurred, due, received, body.
insert into oncebox_message (
    lane, pos, kind, key, long_key, order_by, target, headers, occurred_at, due_at, received_at, body
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
