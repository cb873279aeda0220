-- Holds off pruning, and others who register or remove handlers.
select lane from "{schema}".lane where handler = -1 order by lane for update
