-- Handlers by name.
select id, name, kinds, mode, state from "{schema}".handler where name = any ($1)
