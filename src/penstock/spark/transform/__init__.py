"""What happens to changes before their destination: steps, expectations, rejects.

    config.py    what a user writes
    paths.py     fields of documents and of updates; pure
    steps.py     select, drop, rename, cast, flatten, mask, hash; pure
    casts.py     values as other kinds, exactly or not at all; pure
    worker.py    entries in Arrow batches through the steps, in Spark's workers
    values.py    what Spark computed, as Extended JSON; pure
    stage.py     a batch through all of it, and what Spark itself computes
    poison.py    the changes on which a user's own code fails
    replay.py    rejected changes, tried again

No entry is ever taken away: decision 0028.
"""
