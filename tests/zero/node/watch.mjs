// Prints when the largest id of a table of a replica of zero-cache grew: `[id, unix ms]` a line. Looks
// once a millisecond. Ends when its standard input does.
//
//   node watch.mjs replica.db item
import Database from '@rocicorp/zero-sqlite3';

const [file, table] = process.argv.slice(2);
const database = new Database(file, {readonly: true, fileMustExist: true});
const look = database.prepare(`SELECT max(id) FROM "${table}"`).pluck();

let last;
setInterval(() => {
  const largest = look.get();
  if (largest === last) return;
  last = largest;
  process.stdout.write(JSON.stringify([largest, Date.now()]) + '\n');
}, 1);
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
