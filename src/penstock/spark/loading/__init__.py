"""`first_load = "source"`: the rows that were there before the log (docs/decisions/0034)."""
