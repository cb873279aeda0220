-- Which of these keys were accepted before, by primary key, and where. The keys are a JSON array of [kind,
-- key], keys in hex.
select wanted.key, m.lane, m.pos, m.fingerprint
from json_each(?1) as wanted
cross join oncebox_marker m
    on m.handler = '@accept' and m.kind = wanted.value ->> 0 and m.key = unhex(wanted.value ->> 1)
