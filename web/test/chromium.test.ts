// The suite in a page of Chromium.

import { after, before, describe, test } from "node:test";
import type { Browser, Page } from "puppeteer-core";
import { chromium, launch, PageServer } from "./browser.ts";
import { type Server, start } from "./server.ts";
import { tests } from "./suite.ts";

describe("in Chromium", { skip: chromium ? false : "Chromium is not installed" }, () => {
  let pages: PageServer;
  let servers: Server[];
  let browser: Browser;
  let page: Page;
  before(async () => {
    pages = await PageServer.start("page.ts");
    servers = [await start("-origins", pages.origin), await start("-origins", pages.origin, "-calls", "10")];
    browser = await launch();
    page = await browser.newPage();
    await page.goto(pages.origin);
  });
  after(async () => {
    await browser?.close();
    pages?.stop();
    await Promise.all((servers ?? []).map((s) => s.stop()));
  });
  for (const name of Object.keys(tests)) {
    test(name, { timeout: 60_000 }, async () => {
      await page.evaluate(
        (...args) => (globalThis as unknown as { run(...args: string[]): Promise<void> }).run(...args),
        name,
        servers[0]?.url as string,
        servers[1]?.url as string,
      );
    });
  }
});
