-- Lets a removed handler begin again.
update "{schema}".handler set state = 'active', kinds = $2, mode = $3, ordered = $4 where id = $1
