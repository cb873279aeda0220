-- No more care is needed in a lane.
delete from oncebox_careful where handler = ?1 and lane = ?2
