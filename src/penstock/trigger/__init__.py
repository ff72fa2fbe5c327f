"""An event source mapping for any Python callable: a stream's records, in batches, to a function.

The contract is that of AWS Lambda for DynamoDB Streams, its names and defaults:
https://docs.aws.amazon.com/lambda/latest/dg/with-ddb.html. Where the service would pass a record in
silence, this does not: what was not handled is retried, kept by a destination, or said.

`mapping.run_trigger` runs one; the rest is what it is made of. Nothing is imported here: the
process that runs the function starts from this package too.
"""
