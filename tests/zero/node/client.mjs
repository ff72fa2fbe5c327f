// A client of zero-cache that follows whole tables and prints what it sees, a line of JSON for each
// word: {"table", "rows", "complete"} whenever the rows of a table are others, {"error"} when its
// query fails. Ends when its standard input does.
//
//   node client.mjs http://127.0.0.1:4848 '{"item": {"columns": {"id": "string"}, "key": ["id"]}}'
import {Zero, boolean, createSchema, json, number, string, table} from '@rocicorp/zero';

const [server, described] = process.argv.slice(2);
const kinds = {boolean, json, number, string};
const tables = Object.entries(JSON.parse(described)).map(([name, {columns, key}]) =>
  table(name)
    .columns(
      Object.fromEntries(Object.entries(columns).map(([c, kind]) => [c, kinds[kind]().optional()])),
    )
    .primaryKey(...key),
);
const say = what => process.stdout.write(JSON.stringify(what) + '\n');

// Standard output is ours alone.
for (const level of ['debug', 'info', 'log', 'warn', 'error']) {
  console[level] = (...words) => process.stderr.write(words.map(String).join(' ') + '\n');
}
const zero = new Zero({
  cacheURL: server,
  userID: 'anybody',
  schema: createSchema({tables, enableLegacyQueries: true}),
  kvStore: 'mem',
  onUpdateNeeded: reason => say({error: `update needed: ${reason.type}`}),
  onClientStateNotFound: () => say({error: 'client state not found'}),
});
for (const {schema} of tables) {
  const view = zero.query[schema.name].materialize('10m');
  // Rows come with columns that we did not ask for, too.
  const of = row => Object.fromEntries(Object.keys(schema.columns).map(name => [name, row[name]]));
  view.addListener((rows, kind, error) => {
    if (error) say({table: schema.name, error: String(error.message ?? JSON.stringify(error))});
    else say({table: schema.name, complete: kind === 'complete', rows: [...rows].map(of)});
  });
}
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
