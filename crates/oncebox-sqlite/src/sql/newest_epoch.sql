-- The highest epoch that a handler ever had in any lane; null if it had none.
select max(epoch) from oncebox_progress where handler = ?1
