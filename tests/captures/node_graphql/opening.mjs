// Says by graphql-ws what connection_init brought: URL PARAMETERS. What it sees of all orders, and
// then that it is done; or how the socket was closed. It does not try again.
import { createClient } from "graphql-ws";
import WebSocket from "ws";

const [url, parameters] = process.argv.slice(2);
const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);
const client = createClient({
  url,
  webSocketImpl: WebSocket,
  connectionParams: JSON.parse(parameters),
  retryAttempts: 0,
});
const query = `subscription {
  onDataChangeUntyped(since: {beginning: true}) {
    __typename ... on UntypedChange { entityType body }
  }
}`;
const stop = client.subscribe({ query }, {
  next: ({ data }) => {
    const item = data.onDataChangeUntyped;
    if (item.__typename === "UntypedChange") say({ collection: item.entityType, body: item.body });
    if (item.__typename === "Maintenance") stop();
  },
  error: (why) => {
    say({ closed: why.code ?? String(why), reason: why.reason ?? "" });
    client.dispose();
  },
  complete: () => {
    say({ completed: true });
    client.dispose();
  },
});
