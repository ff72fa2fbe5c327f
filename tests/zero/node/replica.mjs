// Prints what a replica of zero-cache holds, as one JSON object:
//   {"watermark": "1s1", "tables": {"item": [{"id": "a", ...}]}}
// Rows are as SQLite has them: booleans 0 and 1, json as text. Integers are exact.
import Database from '@rocicorp/zero-sqlite3';

const [file, ...wanted] = process.argv.slice(2);
const database = new Database(file, {readonly: true, fileMustExist: true});
database.defaultSafeIntegers(true);
const plain = (_, value) => (typeof value === 'bigint' ? JSON.rawJSON(value.toString()) : value);

// One transaction: the watermark is that of the rows.
const read = database.transaction(() => {
  const {stateVersion} = database.prepare('SELECT stateVersion FROM "_zero.replicationState"').get();
  const tables = {};
  const names = database
    .prepare(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
    .pluck()
    .all();
  for (const name of names) {
    if (name.startsWith('_zero.') || (wanted.length > 0 && !wanted.includes(name))) continue;
    tables[name] = database.prepare(`SELECT * FROM "${name}"`).all();
    for (const row of tables[name]) delete row._0_version;
  }
  return {watermark: stateVersion, tables};
});
process.stdout.write(JSON.stringify(read(), plain) + '\n');
