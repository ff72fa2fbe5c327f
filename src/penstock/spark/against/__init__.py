"""The tables of a pipeline compared with the source itself (docs/decisions/0036)."""
