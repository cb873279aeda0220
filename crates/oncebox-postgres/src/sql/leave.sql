-- A process ends as it should.
with noted as (
    delete from "{schema}".attempting where process = $1
)
delete from "{schema}".process where id = $1
