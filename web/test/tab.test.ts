// Tabs that are closed, left and of another origin, in Chromium.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { createClient } from "@connectrpc/connect";
import type { Browser, Page } from "puppeteer-core";
import { createNearcallTransport } from "../src/index.ts";
import { chromium, launch, PageServer } from "./browser.ts";
import { Probe } from "./gen/probepb/probe_pb.ts";
import { type Server, start } from "./server.ts";
import type { Tab } from "./tab.ts";

describe("tabs in Chromium", { skip: chromium ? false : "Chromium is not installed", timeout: 120_000 }, () => {
  let pages: PageServer;
  let server: Server;
  let browser: Browser;
  before(async () => {
    pages = await PageServer.start("tab.ts");
    server = await start("-origins", pages.origin);
    browser = await launch({ ignoreDefaultArgs: ["--disable-back-forward-cache"] });
  });
  after(async () => {
    await browser?.close();
    pages?.stop();
    await server?.stop();
  });

  /** Opens a tab whose calls go to a URL. */
  async function open(url: string): Promise<Page> {
    const page = await browser.newPage();
    await page.goto(`${pages.origin}/?calls=${encodeURIComponent(url)}`);
    return page;
  }

  /** Calls a function of the tab. */
  function ask<K extends "echo" | "stream" | "end">(page: Page, f: K, ...args: string[]): Promise<unknown> {
    return page.evaluate(
      (f, ...args) =>
        (globalThis as unknown as { tab: Record<string, (...args: string[]) => unknown> }).tab[f]?.(...args),
      f as string,
      ...args,
    );
  }

  /** Waits until the server has as many calls running. */
  async function running(n: number): Promise<void> {
    const transport = createNearcallTransport({ url: server.url });
    const probe = createClient(Probe, transport);
    for (;;) {
      const { text } = await probe.echo({ text: "!counts" });
      if (JSON.parse(text).running === n) break;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    transport.close();
  }

  test("a page of an origin that the server does not know is refused", async () => {
    const other = await start("-origins", "https://else.example");
    const page = await open(other.url);
    assert.match(String(await ask(page, "echo", "hello")), /\[unavailable\].*(1006|refuse|open)/);
    await page.close();
    await other.stop();
  });

  test("closing a tab ends its calls on the server", async () => {
    const page = await open(server.url);
    await ask(page, "stream");
    await running(1);
    await page.close();
    await running(0);
  });

  test("reloading a page ends its calls on the server", async () => {
    const page = await open(server.url);
    await ask(page, "stream");
    await running(1);
    await page.reload();
    await running(0);
    assert.equal(await ask(page, "echo", "after"), "after");
    await page.close();
  });

  test("a page that comes back by the back button makes calls again", async () => {
    const page = await open(server.url);
    assert.equal(await ask(page, "echo", "before"), "before");
    await ask(page, "stream");
    await page.goto(`${pages.origin}/elsewhere?calls=${encodeURIComponent(server.url)}`);
    await running(0);
    await page.goBack();
    const shown = await page.evaluate(() => (globalThis as unknown as { tab: Tab }).tab.shown);
    assert.deepEqual(shown, [false, true], "the browser has not kept the page, so this test shows nothing");
    assert.match(String(await ask(page, "end")), /\[unavailable\].*put the page aside/);
    assert.equal(await ask(page, "echo", "back"), "back");
    await page.close();
  });
});
