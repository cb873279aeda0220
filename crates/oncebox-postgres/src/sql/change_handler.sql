-- What is wanted of a handler now.
update "{schema}".handler set kinds = $2, mode = $3, ordered = $4 where id = $1
