-- What a handler is to run on again in a lane: handler, lane, epoch, after, until.
insert into oncebox_replay (handler, lane, epoch, after, until) values (?1, ?2, ?3, ?4, ?5)
