-- A new handler; no row if another process has just inserted that name.
insert into "{schema}".handler (name, kinds, mode, state) values ($1, $2, $3, 'active')
on conflict do nothing
returning id
