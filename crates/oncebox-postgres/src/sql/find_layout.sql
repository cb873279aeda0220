-- What is fixed of the log, if there is one.
select lanes, hash from "{schema}".layout
