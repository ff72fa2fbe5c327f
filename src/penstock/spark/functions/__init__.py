"""Functions from DataFrame to DataFrame: what the destinations make, for programs of your own.

    from penstock.spark.functions import current_rows

    entries = spark.read.format("penstock").option("startingOffsets", "earliest").load()
    orders = entries.transform(current_rows, collections=["orders"])

They take *entries* as `format("penstock")` reads them: all columns, documents as JSON text, in any
order and partitioning, and an entry may be there more than once. They give what a pipeline keeps:

| function | gives | is what |
|---|---|---|
| `latest_changes` | a row for each row that changed: what it comes to | a `MERGE` takes |
| `build_on` | the same, where changes build on a row that you keep | |
| `collection_events` | a row for each event that ends or moves all rows of a collection | |
| `current_rows` | the rows that there are now | `to = "table"` keeps |
| `row_versions` | every version of every row | `to = "history"` keeps |
| `rejected_changes` | the changes that these could not apply | rejects are |
| `changelog` | every entry, and its folders | `to = "changelog"` keeps |

What they promise:

- **Complete, or an error.** A call reads the entries once, without documents, and checks them:
  every commit has the entries and the digest that it was captured with, and there is no gap. What
  is wrong is raised by the call: IncompleteCommitError, ChangesLostError, PipelineError. `on_gap =
  "record"` goes on over gaps; `collection_events` has them as rows. A gap of capture and one that
  `failOnDataLoss = "false"` left are the same.
- **Filtered entries.** Without `collections`, entries are all of a source, and a commit of which
  one is missing is an error. Entries that were read with the option `collections`, or filtered by
  you, need `collections`: the names of those that are whole, as `orders` or `shop/orders`. Then a
  commit may have fewer entries; one that has them all must still have its digest. Other collections
  are left out; one of them that is renamed to one of these is a gap, for nobody knows its rows.
- **As of the call.** Entries that come to the log later are in no row. The entries are read again
  whenever the result is used, so `persist` what is dear to read; if retention has removed some by
  then, that is an error.
- **One log.** A sequence is an entry's identity: entries of two logs in one DataFrame are an error
  where that is seen.
- **Nothing passes through the driver** but events about whole collections. Workers fold a row's
  changes one at a time; Spark sorts, and spills.
- **No SparkContext is used**, so they work through Spark Connect too, if the server has Penstock.

A stream is refused (ConfigError): use them in `foreachBatch`.

Documents are Extended JSON text (`docs/reference/fields.md`). `schema`, DDL such as
`"_id INT, total DECIMAL(10, 2)"`, makes them structs, by the same rules as `documentSchema`: a
document that does not fit is an error when rows are used (DocumentMisfitError, with its place), or,
with `on_misfit = "record"`, null, and a column `rejected` has {path, reason, document} as JSON.
"""

from penstock.spark.functions.batches import build_on, collection_events, latest_changes
from penstock.spark.functions.rows import changelog, current_rows, rejected_changes, row_versions

__all__ = [
    "build_on",
    "changelog",
    "collection_events",
    "current_rows",
    "latest_changes",
    "rejected_changes",
    "row_versions",
]
