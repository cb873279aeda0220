-- What is known of the handlers of these names, a JSON array. A name that a handler had before tells the one that it has
-- now.
select
    h.id, h.name,
    case when h.state = 'renamed' then now.name else h.origin end,
    h.kinds, h.mode, h.ordered, h.state
from json_each(?1) as wanted
cross join oncebox_handler h on h.name = wanted.value
left join oncebox_handler now on now.id = h.renamed_to
