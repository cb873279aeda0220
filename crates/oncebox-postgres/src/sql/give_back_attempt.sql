-- A message did not run after all. Those who died of it before are still counted, by a note of nobody.
with first as (
    delete from "{schema}".attempting where handler = $1 and lane = $2 and pos = $3 and process = $4 and crashes = 1
)
update "{schema}".attempting set crashes = crashes - 1, process = '00000000-0000-0000-0000-000000000000'
where handler = $1 and lane = $2 and pos = $3 and process = $4 and crashes > 1
