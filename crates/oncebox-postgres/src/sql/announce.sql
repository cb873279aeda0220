-- Tells those who listen. In a transaction of its own: inside of another one, its commit would wait for all others that notify.
select pg_notify($1, '')
