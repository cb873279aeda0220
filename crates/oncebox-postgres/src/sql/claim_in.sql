-- Claims one unit in a transaction that the caller owns: a row means fresh. The primary key is the referee.
insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
values (
    $1, $2, $3, $4, $5, 'done',
    clock_timestamp() + ($7::int8 - $6::int8) * interval '1 ms', clock_timestamp() + $7::int8 * interval '1 ms'
)
on conflict do nothing
