-- Kinds of which messages were accepted and that no handler takes.
select k.kind, floor(extract(epoch from k.first_seen_at) * 1000)::int8 as since_ms
from "{schema}".kind k
where not exists (
    select from "{schema}".handler h
    where h.state in ('active', 'paused') and h.mode in ('stored', 'mixed') and k.kind = any (h.kinds)
)
order by k.kind
