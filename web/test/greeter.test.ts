// The page of connect/example in Chromium, and its server with Connect's generated code.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { Browser, Page } from "puppeteer-core";
import { chromium, launch } from "./browser.ts";
import { Program, type Running } from "./program.ts";
import { until } from "./suite.ts";

describe("a page of a server of Connect", { skip: chromium ? false : "Chromium is not installed" }, () => {
  let server: Running;
  let browser: Browser;
  let page: Page;
  const errors: string[] = [];
  const requests: string[] = []; // without those for WebSockets

  before(async () => {
    const program = new Program("connect/example");
    server = program.start("-socket", join(program.folder, "socket"), "-http", "127.0.0.1:0", "serve");
    const [url] = await server.says(/http:\S+/);
    browser = await launch();
    page = await browser.newPage();
    page.on("pageerror", (e) => errors.push(String(e)));
    await page.goto(url as string);
    page.on("request", (r) => requests.push(new URL(r.url()).pathname));
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });

  /** Enters a name, clicks on a button, and returns what the page then shows. */
  async function click(way: "socket" | "http" | "meet", name: string): Promise<string> {
    const replies = () => page.$$eval("#replies li", (all) => all.map((li) => li.textContent ?? ""));
    const before = await replies();
    await page.$eval("input", (field, name) => Object.assign(field, { value: name }), name);
    await page.click(`button[value=${way}]`);
    await until("there is a reply", async () => (await replies()).length > before.length);
    const now = await replies();
    assert.deepEqual(now.slice(0, -1), before);
    return now.at(-1) as string;
  }

  test("it calls over a WebSocket and over HTTP", async () => {
    assert.equal(await click("socket", "Ada"), "Hello, Ada");
    assert.deepEqual(requests, []);
    assert.equal(await click("http", "Bob"), "Hello, Bob");
    assert.deepEqual(requests, ["/greet.v1.Greeter/Greet"]);
  });

  test("it streams both ways", async () => {
    assert.equal(await click("meet", "Ada"), "Hello, Ada");
    assert.equal(await click("meet", "Bob"), "Hello, Bob, meet Ada");
    assert.equal(await click("meet", "Eve"), "Hello, Eve, meet Ada and Bob");
  });

  test("it shows a handler's errors", async () => {
    for (const way of ["socket", "http", "meet"] as const)
      assert.equal(await click(way, ""), "[invalid_argument] who are you?");
    assert.equal(await click("meet", "Zoe"), "Hello, Zoe");
    assert.deepEqual(errors, []);
  });
});
