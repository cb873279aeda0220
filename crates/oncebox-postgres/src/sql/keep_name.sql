-- The old name stays taken.
insert into "{schema}".handler (name, origin, kinds, mode, state, renamed_to) values ($2, $2, '{}', 'inline', 'renamed', $1)
