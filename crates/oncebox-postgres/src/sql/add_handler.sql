-- A new handler; no row if another process has just inserted that name.
insert into "{schema}".handler (name, origin, kinds, mode, ordered, state) values ($1, $1, $2, $3, $4, 'active')
on conflict do nothing
returning id
