-- One message less to be careful with in a lane.
update oncebox_careful set messages_left = messages_left - 1 where handler = ?1 and lane = ?2
returning messages_left
