"""The engine of `to = "table"`: what a batch does to a Delta table, decided purely.

Workers reduce and decode (`chunk`, `reduce`, `decode`); the driver joins, plans and writes
(`batch`, `apply`, `patch`, `plan`; `delta`, `rejects`, `standing` are its edge).
"""
