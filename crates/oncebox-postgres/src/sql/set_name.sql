-- The handler's new name.
update "{schema}".handler set name = $2 where id = $1
