-- What is fixed of the log; no row where there is none.
select lanes, hash from oncebox_layout
