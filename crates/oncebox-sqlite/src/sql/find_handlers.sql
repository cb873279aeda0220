-- What is known of the handlers of these names, a JSON array.
select h.id, h.name, h.kinds, h.mode, h.state
from json_each(?1) as wanted
cross join oncebox_handler h on h.name = wanted.value
