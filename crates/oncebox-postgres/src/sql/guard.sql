-- Proves that this is still the engine's own transaction, whole; from here on it may commit.
select "{schema}".guard($1, true, $2)
