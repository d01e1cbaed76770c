import assert from "node:assert/strict";
import { test } from "node:test";
import { work } from "../test/work.ts";
import { Queue } from "./queue.ts";

test("a queue gives what it was given, in order", () => {
  const q = new Queue<number>();
  const model: number[] = [];
  for (let i = 0, seed = 1; i < 10_000; i++) {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    if (seed % 1000 === 0) {
      q.clear();
      model.length = 0;
    } else if (seed % 5 < (Math.floor(i / 1000) % 2 ? 2 : 3)) {
      q.push(i);
      model.push(i);
    } else assert.equal(q.shift(), model.shift());
    assert.equal(q.length, model.length);
  }
});

test("a long queue moves each item a few times", async () => {
  const n = 100_000;
  const q = new Queue<number>();
  const moved = await work(() => {
    for (let i = 0; i < n; i++) q.push(i);
    for (let i = 0; i < n; i++) {
      assert.equal(q.shift(), i);
      if (i % 2 === 0) q.push(n);
    }
  });
  assert.ok(moved < 5 * n, `${moved} items were moved`);
});
