-- A handler reads the log no more; without tasks ($2), it needs no locks either.
with progress as (
    delete from "{schema}".progress where handler = $1
), replay as (
    delete from "{schema}".replay where handler = $1
)
delete from "{schema}".lane where handler = $1 and not $2
