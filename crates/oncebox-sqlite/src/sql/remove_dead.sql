-- Removes the chosen dead letters.
delete from oncebox_dead
where (handler, lane, pos) in (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
