-- Forgets stretches of live time that ended before $1.
delete from "{schema}".live where until_at < to_timestamp($1::int8 / 1000.0)
