// Follows a puller with stubs that Node's own generator made from the design's proto: consumer.mjs
// ADDRESS AFTER COUNT. Writes each event as a line of JSON, and how the stream ended as the last one.

import { createClient, ConnectError } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { PullerService } from "./gen/puller_pb.js";

const [address, after, count] = process.argv.slice(2);
const transport = createGrpcTransport({ baseUrl: `http://${address}` });
const puller = createClient(PullerService, transport);
const text = new TextDecoder();
const say = (fact) => console.log(JSON.stringify(fact));
const leave = new AbortController();

try {
  let seen = 0;
  const request = { consumerId: "node", after, coalesceOnCatchUp: false };
  for await (const event of puller.subscribe(request, { signal: leave.signal })) {
    if (event.operationType === "") continue; // a heartbeat has its progress alone
    say({
      id: event.id,
      tenant: event.tenant,
      collection: event.collection,
      documentId: event.documentId,
      operationType: event.operationType,
      fullDocument: event.fullDocument.length ? JSON.parse(text.decode(event.fullDocument)) : null,
      clusterTime: { T: event.clusterTime.t, I: event.clusterTime.i },
      timestamp: Number(event.timestamp),
      progress: event.progress,
    });
    if (++seen === Number(count)) break;
  }
  say({ ended: "ok" });
} catch (error) {
  const { code, rawMessage, metadata } = ConnectError.from(error);
  say({ ended: code, message: rawMessage, code: metadata.get("penstock-code") });
}
process.exit(0);
