// The benchmark in short: every stack can make its calls, and the page has checked the answers. The
// figures are printed, not judged.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Bench, ratio, rows, table } from "../bench/bench.ts";
import type { RowName } from "../bench/page.ts";
import { chromium } from "./browser.ts";

const ms = 100;

describe("benchmark", { skip: chromium ? false : "Chromium is not installed" }, () => {
  let bench: Bench;
  before(async () => {
    bench = await Bench.start();
  });
  after(() => bench?.stop());

  test("every stack makes the calls of every row", { timeout: 120_000 }, async () => {
    const samples = await bench.run(1, ms);
    console.log(table(samples, bench.version, ms));
    for (const [name, row] of Object.entries(rows)) {
      for (const stack of row.stacks) {
        const s = samples[name as RowName][stack];
        assert.equal(s?.length, 1, `${name} of ${stack}`);
        assert.ok((s[0]?.rate ?? 0) > 0, `${name} of ${stack}`);
      }
    }
    assert.ok((ratio(samples, "unary", "nearcall", "http1") ?? 0) > 0);
    assert.equal(ratio(samples, "chat", "nearcall", "http1"), undefined);
  });

  test("connect-web is measured over the protocols that the table names", { timeout: 60_000 }, async () => {
    await bench.measure("http1", "unary", 1);
    await bench.measure("http2", "unary", 1);
    assert.deepEqual([...(await bench.protocols("http1"))], ["http/1.1"]);
    assert.deepEqual([...(await bench.protocols("http2"))], ["h2"]);
  });
});
