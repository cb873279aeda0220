-- Whether somebody has a name.
select exists (select 1 from oncebox_handler where name = ?1)
