-- What the program's own role needs, and nothing more. Migrate with another role.
grant usage on schema "{schema}" to "{role}";
grant select on "{schema}".version to "{role}";
grant select, insert, update, delete on "{schema}".marker, "{schema}".result, "{schema}".live to "{role}";
grant execute on function "{schema}".stored_key(bytea) to "{role}";
grant execute on function "{schema}".guard(text, boolean) to "{role}";
grant execute on function "{schema}".claim(text, text, bytea) to "{role}";
grant execute on function "{schema}".claim(text, text, text) to "{role}";
