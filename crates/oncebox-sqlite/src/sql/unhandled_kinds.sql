-- Kinds of which messages were accepted, and that no handler takes from the log.
select k.kind, k.first_seen_at
from oncebox_kind k
where k.kind not in (
    select taken.value from oncebox_handler h
    cross join json_each(h.kinds) taken
    where h.state in ('active', 'paused') and h.mode in ('stored', 'mixed')
)
order by k.kind
