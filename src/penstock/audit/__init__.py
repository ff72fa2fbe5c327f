"""An audit trail in MongoDB: every change of a source, in order, whole, and provably unaltered.

A library: `penstock.spark.audit` fills a trail, `penstock audit` reads, proves and mends one.
Record 0023 says what it promises and why.
"""
