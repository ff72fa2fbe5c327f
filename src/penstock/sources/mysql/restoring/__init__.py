"""Rows of an audit trail back into a server: exact literals, statements, and what differs.

`literals`, `documents`, `ddl`, `columns`, `sql` and `replay` decide, purely; `server` asks and
tells one.
"""
