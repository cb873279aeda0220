-- Ends whatever a backend of ours is doing, and the backend with it.
select pg_terminate_backend($1)
