// Follows orders by graphql-ws: FROM COUNT CUT. After CUT captures the connection is cut, and the
// client goes on by itself from what it saved. Says each capture as a line, then how it ended.
import { createClient } from "graphql-ws";
import WebSocket from "ws";

const [url, from, count, cut] = process.argv.slice(2);
const query = `subscription($since: Since) {
  onOrdersDataChange(since: $since) {
    __typename progress
    ... on OrdersDataChange { version documentId body { fullDocument { _id at } } }
  }
}`;
const since = from === "" ? { beginning: true } : { progress: from };
const payload = { query, variables: { since } };
let connections = 0;
const client = createClient({
  url,
  webSocketImpl: WebSocket,
  connectionParams: { token: "anything" },
  retryWait: async () => {},
  shouldRetry: () => true,
  on: { connected: () => { connections += 1; } },
});
const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);
let seen = 0;
let saved = "";
const stop = client.subscribe(payload, {
  next: ({ data, errors }) => {
    if (errors) throw new Error("errors in a result");
    // What is still on its way when it has enough is not done with, so it is not saved.
    if (seen >= Number(count)) return;
    const item = data.onOrdersDataChange;
    if (item.progress !== null) {
      saved = item.progress;
      // What it sends when it connects again.
      payload.variables.since = { progress: saved };
    }
    if (item.__typename !== "OrdersDataChange") return;
    seen += 1;
    say({ version: item.version, document: item.body.fullDocument });
    if (seen === Number(cut)) client.terminate();
    if (seen === Number(count)) stop();
  },
  error: (errors) => {
    say({ refused: errors[0]?.extensions ?? String(errors) });
    client.dispose();
  },
  complete: () => {
    say({ completed: true, connections, saved });
    client.dispose();
  },
});
