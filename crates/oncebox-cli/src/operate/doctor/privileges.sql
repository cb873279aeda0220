-- The privileges on the tables in the schema $1 that a running program needs and the role lacks. Missing tables do not count.
select lower(need.privilege) || ' ' || c.relname
from (values
    ('version', array['SELECT']),
    ('marker', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('result', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('live', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('layout', array['SELECT', 'INSERT']),
    ('kind', array['SELECT', 'INSERT']),
    ('audit', array['SELECT', 'INSERT']),
    ('handler', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('lane', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('task', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('dead', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('process', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('careful', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('attempting', array['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('replay', array['SELECT', 'INSERT', 'DELETE']),
    ('message', array['SELECT', 'INSERT', 'DELETE']),
    ('progress', array['SELECT', 'INSERT', 'DELETE']),
    ('outbox', array['SELECT', 'INSERT', 'DELETE']),
    ('mover', array['SELECT', 'UPDATE'])
) as wanted(relation, privileges)
cross join lateral unnest(wanted.privileges) as need(privilege)
join pg_catalog.pg_class c on c.relname = wanted.relation
join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
where not has_table_privilege(c.oid, need.privilege)
order by c.relname, need.privilege
