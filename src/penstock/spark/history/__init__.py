"""The engine of `to = "history"`: what a batch does to a Delta table of versions, decided purely.

Workers decode (`penstock.spark.table.chunk`), the driver resolves what builds on earlier versions
(`resolve`), decides which versions there are (`versions`), what is written (`apply`), and writes it
(`batch`; `delta` is its edge).
"""
