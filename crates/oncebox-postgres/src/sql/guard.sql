-- Which transaction this is. Fails in one that was broken by an error which the handler swallowed.
select pg_current_xact_id_if_assigned()::text
