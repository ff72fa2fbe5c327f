// Reads every stream of a table with the AWS SDK: streams.mjs ENDPOINT TABLE. Says one line of JSON
// for each stream, then how a place that is none is refused.

import {
  DescribeStreamCommand,
  DynamoDBStreamsClient,
  GetRecordsCommand,
  GetShardIteratorCommand,
  ListStreamsCommand,
  ResourceNotFoundException,
} from "@aws-sdk/client-dynamodb-streams";

const [endpoint, TableName] = process.argv.slice(2);
const client = new DynamoDBStreamsClient({
  endpoint,
  region: "us-east-1",
  credentials: { accessKeyId: "AKIDEXAMPLE", secretAccessKey: "secret" },
  maxAttempts: 1,
});
const say = (fact) => console.log(JSON.stringify(fact));

async function shard(StreamArn, ShardId) {
  const asked = { StreamArn, ShardId, ShardIteratorType: "TRIM_HORIZON" };
  let { ShardIterator } = await client.send(new GetShardIteratorCommand(asked));
  const records = [];
  while (ShardIterator) {
    const page = await client.send(new GetRecordsCommand({ ShardIterator, Limit: 2 }));
    records.push(...page.Records);
    if (page.Records.length === 0) break;
    ShardIterator = page.NextShardIterator;
  }
  return records;
}

let ExclusiveStartStreamArn;
do {
  const page = await client.send(
    new ListStreamsCommand({ TableName, Limit: 1, ExclusiveStartStreamArn }),
  );
  ExclusiveStartStreamArn = page.LastEvaluatedStreamArn;
  for (const { StreamArn } of page.Streams) {
    const told = await client.send(new DescribeStreamCommand({ StreamArn }));
    const { Shards, StreamStatus, StreamViewType, KeySchema } = told.StreamDescription;
    const records = [];
    for (const { ShardId } of Shards) records.push(...(await shard(StreamArn, ShardId)));
    say({
      arn: StreamArn,
      status: StreamStatus,
      view: StreamViewType,
      keys: KeySchema.map((one) => one.AttributeName),
      records: records.map((one) => ({
        event: one.eventName,
        keys: one.dynamodb.Keys,
        image: one.dynamodb.NewImage ?? null,
        number: one.dynamodb.SequenceNumber,
        created: one.dynamodb.ApproximateCreationDateTime instanceof Date,
      })),
    });
  }
} while (ExclusiveStartStreamArn);
try {
  const arn = `arn:aws:dynamodb:us-east-1:000000000000:table/none/stream/2026-01-01T00:00:00.000`;
  await client.send(new DescribeStreamCommand({ StreamArn: arn }));
} catch (error) {
  say({ refused: error instanceof ResourceNotFoundException });
}
