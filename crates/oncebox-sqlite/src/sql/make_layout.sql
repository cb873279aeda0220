-- Fixes the number of lanes, and how an ordering key becomes one of them.
insert into oncebox_layout (lanes, hash) values (?1, ?2)
