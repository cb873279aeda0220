-- The audit: what operators did.

-- name: audit
-- The latest actions, newest first.
-- Rows: the newest ones, by primary key.
select at, operator, action, handler, lane, pos, detail from oncebox_audit order by id desc limit ?1;

-- name: audit_dead
-- Writes down what an operator (?2) does with the chosen dead letters: the action, or another one (?4) for those that are done,
-- with the error of each and what comes behind it (?5).
-- Index: primary keys of oncebox_dead, oncebox_handler.
insert into oncebox_audit (at, operator, action, handler, lane, pos, detail)
select
    cast(unixepoch('subsec') * 1000 as integer) + ?6, ?2,
    case when chosen.value ->> 3 then ?4 else ?3 end,
    h.name, d.lane, d.pos, d.error || ?5
from json_each(?1) as chosen
cross join oncebox_handler h on h.id = chosen.value ->> 0
cross join oncebox_dead d
    on d.handler = chosen.value ->> 0 and d.lane = chosen.value ->> 1 and d.pos = chosen.value ->> 2
order by chosen.key;

-- name: audit_handler
-- Writes down what an operator does with a handler.
-- Rows: inserts one.
insert into oncebox_audit (at, operator, action, handler, detail)
values (cast(unixepoch('subsec') * 1000 as integer) + ?5, ?1, ?2, ?3, ?4);
