"""The operations of a store's endpoint."""

from typing import Final

from penstock.serve.dynamodb import batches, items, reads, streams, tables, transactions
from penstock.serve.dynamodb.model import DATA, STREAMS
from penstock.serve.dynamodb.requests import DATA_TARGET, STREAMS_TARGET, altering, reading, writing

OPERATIONS: Final = {
    f"{STREAMS_TARGET}.ListStreams": reading(STREAMS["ListStreams"], streams.list_streams),
    f"{STREAMS_TARGET}.DescribeStream": reading(STREAMS["DescribeStream"], streams.describe_stream),
    f"{STREAMS_TARGET}.GetShardIterator": reading(
        STREAMS["GetShardIterator"], streams.get_shard_iterator
    ),
    f"{STREAMS_TARGET}.GetRecords": reading(STREAMS["GetRecords"], streams.get_records),
    f"{DATA_TARGET}.CreateTable": altering(DATA["CreateTable"], tables.create_table),
    f"{DATA_TARGET}.UpdateTable": altering(DATA["UpdateTable"], tables.update_table),
    f"{DATA_TARGET}.DescribeTable": reading(DATA["DescribeTable"], tables.describe_table),
    f"{DATA_TARGET}.DeleteTable": altering(DATA["DeleteTable"], tables.delete_table),
    f"{DATA_TARGET}.ListTables": reading(DATA["ListTables"], tables.list_tables),
    f"{DATA_TARGET}.DescribeLimits": reading(DATA["DescribeLimits"], tables.describe_limits),
    f"{DATA_TARGET}.TagResource": altering(DATA["TagResource"], tables.tag_resource),
    f"{DATA_TARGET}.UntagResource": altering(DATA["UntagResource"], tables.untag_resource),
    f"{DATA_TARGET}.ListTagsOfResource": reading(
        DATA["ListTagsOfResource"], tables.list_tags_of_resource
    ),
    f"{DATA_TARGET}.UpdateTimeToLive": altering(
        DATA["UpdateTimeToLive"], tables.update_time_to_live
    ),
    f"{DATA_TARGET}.DescribeTimeToLive": reading(
        DATA["DescribeTimeToLive"], tables.describe_time_to_live
    ),
    f"{DATA_TARGET}.DescribeContinuousBackups": reading(
        DATA["DescribeContinuousBackups"], tables.describe_continuous_backups
    ),
    f"{DATA_TARGET}.PutItem": writing(DATA["PutItem"], items.put_item),
    f"{DATA_TARGET}.DeleteItem": writing(DATA["DeleteItem"], items.delete_item),
    f"{DATA_TARGET}.UpdateItem": writing(DATA["UpdateItem"], items.update_item),
    f"{DATA_TARGET}.GetItem": reading(DATA["GetItem"], items.get_item),
    f"{DATA_TARGET}.BatchGetItem": reading(DATA["BatchGetItem"], batches.batch_get_item),
    f"{DATA_TARGET}.BatchWriteItem": writing(DATA["BatchWriteItem"], batches.batch_write_item),
    f"{DATA_TARGET}.TransactWriteItems": writing(
        DATA["TransactWriteItems"], transactions.transact_write_items
    ),
    f"{DATA_TARGET}.TransactGetItems": reading(
        DATA["TransactGetItems"], transactions.transact_get_items
    ),
    f"{DATA_TARGET}.Query": reading(DATA["Query"], reads.query),
    f"{DATA_TARGET}.Scan": reading(DATA["Scan"], reads.scan),
}
"""By the X-Amz-Target header of a request."""
