-- A message did not kill its process: one less to be careful with.
with noted as (
    delete from "{schema}".attempting where handler = $1 and lane = $2 and pos = $3
), less as (
    update "{schema}".careful set messages_left = messages_left - 1
    where handler = $1 and lane = $2 and messages_left > 1
)
delete from "{schema}".careful where handler = $1 and lane = $2 and messages_left <= 1
