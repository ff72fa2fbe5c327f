// Subscribes with stubs that grpc-js makes of the proto at run time: subscriber.mjs PROTO ADDRESS.
// Follows two requests, adds one and ends all of them; then asks for what is refused. Writes each
// thing that it is told as a line of JSON, and how each call ended.

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [proto, address] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, enums: String, oneofs: true };
const { penstock } = grpc.loadPackageDefinition(loader.loadSync(proto, options));
const client = new penstock.v1.CaptureService(address, grpc.credentials.createInsecure());
const say = (fact) => console.log(JSON.stringify(fact));
const document = (capture) => (capture.body ? JSON.parse(capture.body.full_document) : null);

function told(output) {
  const it = output[output.output];
  if (output.output === "capture")
    return { capture: it.request_ids, version: it.version, area: it.area, document: document(it) };
  if (output.output === "boundary")
    return { boundary: Boolean(it.begins), version: it.version, matched: it.matched };
  if (output.output === "confirmed") return { confirmed: it.request_id, version: it.version };
  if (output.output === "finished") return { finished: it.request_id, error: it.error?.code ?? null };
  if (output.output === "refused") return { refused: it.request_id, code: it.error.code };
  return null;
}

function heard(call) {
  const seen = [];
  let tell = () => {};
  call.on("data", ({ outputs }) => {
    for (const fact of outputs.map(told).filter(Boolean)) {
      say(fact);
      seen.push(fact);
    }
    tell();
  });
  return (enough) =>
    new Promise((resolve) => {
      tell = () => enough(seen) && resolve();
      tell();
    });
}
const ended = (call) =>
  new Promise((resolve) => call.on("status", ({ code, metadata }) =>
    resolve({ ended: code, code: metadata.get("penstock-code")[0] ?? null })));

const data = { area: "AREA_DATA", site: { entity_type: ["orders"] } };
const captures = client.Captures();
captures.on("error", () => {});
const over = ended(captures);
const until = heard(captures);
captures.write({
  subscribe: {
    requests: [{ id: "a", criteria: [data], content: "CONTENT_BODY", since: { beginning: true } }],
    credit: 2,
  },
});
await until((seen) => seen.filter((fact) => fact.capture).length === 2);
captures.write({ extend: { id: "b", criteria: [{ area: "AREA_INFRASTRUCTURE" }], since: { version: { version: 3 } } } });
captures.write({ extend: { id: "a" } });
await until((seen) => seen.some((fact) => fact.refused));
captures.write({ request: { n: 3 } });
await until((seen) => seen.filter((fact) => fact.capture || "boundary" in fact).length === 5);
captures.write({ cancel: {} });
await until((seen) => seen.filter((fact) => fact.finished).length === 2);
captures.end();
say(await over);

const once = client.Subscribe({ requests: [{ criteria: [data], since: { progress: "no marker" } }] });
once.on("error", () => {});
once.resume();
say(await ended(once));
client.close();
