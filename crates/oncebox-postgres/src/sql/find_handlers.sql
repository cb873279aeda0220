-- Handlers by name; of a name that one had before, the name that it has now.
select
    h.id, h.name, coalesce(n.name, h.origin) as origin, h.kinds, h.mode, h.ordered, h.state
from "{schema}".handler h
left join "{schema}".handler n on n.id = h.renamed_to
where h.name = any ($1)
