-- Sets the point to which a failed handler is taken back.
savepoint oncebox_unit
