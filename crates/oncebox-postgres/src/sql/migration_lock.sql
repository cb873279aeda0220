-- One migration at a time in this database; the number is the first eight bytes of "oncebox!".
select pg_advisory_xact_lock(8029464472742492193)
