"""The engine of `to = "view"`: a SQL aggregate over the current rows of collections.

`query` reads and refuses what the configuration says, `sql` writes the statements (both pure);
`state` and `stored` are the two sides in Delta, `upkeep` brings the one up to the other.
"""
