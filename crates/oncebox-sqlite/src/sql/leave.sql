-- A process ends as it should.
delete from oncebox_process where id = ?1
