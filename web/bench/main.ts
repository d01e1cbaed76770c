// Prints the table of the benchmark. With --write FILE it is also written into FILE, between its markers.

import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { chromium } from "../test/browser.ts";
import { Bench, table } from "./bench.ts";

const { values } = parseArgs({
  options: {
    rounds: { type: "string", default: "9" },
    time: { type: "string", default: "400" }, // milliseconds of a turn
    write: { type: "string" },
  },
});
const rounds = Number(values.rounds);
const time = Number(values.time);
if (!(rounds >= 1 && time >= 1)) throw new Error("--rounds and --time are numbers of at least 1");
if (!chromium) throw new Error("Chromium is not installed: make chromium");

const [begin, end] = ["<!-- bench: begin -->\n", "<!-- bench: end -->\n"];
const parts = values.write ? readFileSync(values.write, "utf8").split(begin) : undefined;
const rest = parts?.[1]?.split(end)[1];
if (parts && rest === undefined) throw new Error(`${values.write} has no ${begin.trim()} and ${end.trim()}`);

const bench = await Bench.start();
try {
  const samples = await bench.run(rounds, time, (done) =>
    process.stderr.write(done > 0 ? `round ${done} of ${rounds}\n` : "all are warm\n"),
  );
  const result = table(samples, bench.version, time);
  process.stdout.write(result);
  if (values.write) writeFileSync(values.write, `${parts?.[0]}${begin}${result}${end}${rest}`);
} finally {
  await bench.stop();
}
