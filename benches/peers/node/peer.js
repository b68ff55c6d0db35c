// peer.js HOST PORT
// "ready"; then for each line N it does N pairs and says how many ns they took, and how many of its CPU time.
import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import redlock from "redlock";

const Redlock = redlock.default ?? redlock;
const [host, port] = process.argv.slice(2);
const client = new Redis({ host, port: Number(port) });
const locks = new Redlock([client], { retryCount: 0 });

await client.ping();
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const cpu = process.cpuUsage();
  const wall = process.hrtime.bigint();
  for (let pair = 0; pair < Number(line); pair++) {
    const lock = await locks.acquire(["peer-node:cache:my_key:42"], 60_000);
    await lock.release();
  }
  const took = process.hrtime.bigint() - wall;
  const { user, system } = process.cpuUsage(cpu);
  console.log(`${took} ${(user + system) * 1000}`);
}
client.disconnect();
