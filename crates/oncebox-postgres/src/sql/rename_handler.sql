-- Gives a handler another name, and writes it down. A name that it had before is free for it again.
with freed as (
    delete from "{schema}".handler where name = $2 and state = 'renamed' and renamed_to = $1
)
insert into "{schema}".audit (at, operator, action, handler, detail)
values (clock_timestamp() + $4::int8 * interval '1 ms', $3, 'rename', $2, 'was ' || $5)
