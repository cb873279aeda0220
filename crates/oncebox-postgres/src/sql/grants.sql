-- What the program's own role needs, and nothing more. Migrate with another role.
grant usage on schema "{schema}" to "{role}";
grant select on "{schema}".version to "{role}";
grant select, insert, update, delete on "{schema}".marker, "{schema}".result, "{schema}".live to "{role}";
grant select, insert on "{schema}".layout, "{schema}".kind, "{schema}".audit to "{role}";
grant select, insert, update, delete on "{schema}".handler, "{schema}".lane, "{schema}".task, "{schema}".dead to "{role}";
grant select, insert, update, delete on "{schema}".process, "{schema}".careful, "{schema}".attempting to "{role}";
grant select, insert, delete on "{schema}".replay to "{role}";
grant usage on sequence "{schema}".fence to "{role}";
grant select, insert, delete on "{schema}".message, "{schema}".progress to "{role}";
grant select, insert, delete on "{schema}".outbox to "{role}";
grant select, update on "{schema}".mover to "{role}";
grant select on "{schema}".inbox_message to "{role}";
grant execute on all functions in schema "{schema}" to "{role}";
