// Makes a table and writes items with the AWS SDK: items.mjs ENDPOINT. Says what came back, as JSON.

import {
  BatchGetItemCommand,
  BatchWriteItemCommand,
  ConditionalCheckFailedException,
  CreateTableCommand,
  DeleteItemCommand,
  DynamoDBClient,
  GetItemCommand,
  PutItemCommand,
  QueryCommand,
  ScanCommand,
  TransactionCanceledException,
  TransactWriteItemsCommand,
  UpdateItemCommand,
  waitUntilTableExists,
} from "@aws-sdk/client-dynamodb";

const [endpoint] = process.argv.slice(2);
const client = new DynamoDBClient({
  endpoint,
  region: "us-east-1",
  credentials: { accessKeyId: "AKIDEXAMPLE", secretAccessKey: "secret" },
  maxAttempts: 1,
});
const send = (command) => client.send(command);
const TableName = "carts";
const key = (user, line) => ({ user: { S: user }, line: { N: String(line) } });
const said = {};

const made = await send(
  new CreateTableCommand({
    TableName,
    KeySchema: [
      { AttributeName: "user", KeyType: "HASH" },
      { AttributeName: "line", KeyType: "RANGE" },
    ],
    AttributeDefinitions: [
      { AttributeName: "user", AttributeType: "S" },
      { AttributeName: "line", AttributeType: "N" },
    ],
    BillingMode: "PAY_PER_REQUEST",
    StreamSpecification: { StreamEnabled: true, StreamViewType: "NEW_AND_OLD_IMAGES" },
  }),
);
said.arn = made.TableDescription.LatestStreamArn;
await waitUntilTableExists({ client, minDelay: 1, maxWaitTime: 60 }, { TableName });
const bytes = new Uint8Array([0, 255]);
await send(new PutItemCommand({ TableName, Item: { ...key("ada", 1), data: { B: bytes } } }));
const read = await send(new GetItemCommand({ TableName, Key: key("ada", 1) }));
said.bytes = Array.from(read.Item.data.B);
const updated = await send(
  new UpdateItemCommand({
    TableName,
    Key: key("ada", 1),
    UpdateExpression: "SET #n = if_not_exists(#n, :zero) + :two REMOVE #d",
    ExpressionAttributeNames: { "#n": "count", "#d": "data" },
    ExpressionAttributeValues: { ":zero": { N: "0" }, ":two": { N: "2" } },
    ReturnValues: "ALL_NEW",
  }),
);
said.updated = updated.Attributes;
try {
  await send(
    new PutItemCommand({
      TableName,
      Item: key("ada", 1),
      ConditionExpression: "attribute_not_exists(#u)",
      ExpressionAttributeNames: { "#u": "user" },
      ReturnValuesOnConditionCheckFailure: "ALL_OLD",
    }),
  );
} catch (error) {
  said.condition = [error instanceof ConditionalCheckFailedException, error.Item];
}
await send(
  new BatchWriteItemCommand({
    RequestItems: {
      [TableName]: [2, 3, 4].map((n) => ({ PutRequest: { Item: key("ada", n) } })),
    },
  }),
);
await send(
  new TransactWriteItemsCommand({
    TransactItems: [
      { Delete: { TableName, Key: key("ada", 2) } },
      { Put: { TableName, Item: key("bob", 1) } },
    ],
    ClientRequestToken: "once",
  }),
);
try {
  await send(
    new TransactWriteItemsCommand({
      TransactItems: [
        { Put: { TableName, Item: key("eve", 1) } },
        {
          ConditionCheck: {
            TableName,
            Key: key("bob", 1),
            ConditionExpression: "attribute_exists(nothing)",
          },
        },
      ],
    }),
  );
} catch (error) {
  const codes = error.CancellationReasons.map((one) => one.Code);
  said.cancelled = [error instanceof TransactionCanceledException, codes];
}
await send(new DeleteItemCommand({ TableName, Key: key("ada", 3) }));
const query = await send(
  new QueryCommand({
    TableName,
    KeyConditionExpression: "#u = :u AND line > :n",
    ExpressionAttributeNames: { "#u": "user" },
    ExpressionAttributeValues: { ":u": { S: "ada" }, ":n": { N: "0" } },
    ScanIndexForward: false,
    ReturnConsumedCapacity: "TOTAL",
  }),
);
said.query = query.Items.map((item) => item.line.N);
said.capacity = query.ConsumedCapacity.CapacityUnits;
said.scanned = (await send(new ScanCommand({ TableName }))).Count;
const batch = await send(
  new BatchGetItemCommand({
    RequestItems: { [TableName]: { Keys: [key("ada", 4), key("bob", 1), key("eve", 1)] } },
  }),
);
said.batch = batch.Responses[TableName].length;
console.log(JSON.stringify(said));
