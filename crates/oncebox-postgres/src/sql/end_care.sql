-- No more care is needed in a lane.
delete from "{schema}".careful where handler = $1 and lane = $2
