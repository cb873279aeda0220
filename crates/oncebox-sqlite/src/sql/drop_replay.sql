-- Forgets what a handler is to run on again in a lane.
delete from oncebox_replay where handler = ?1 and lane = ?2
