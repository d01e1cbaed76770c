// The drawing board of examples/board, in two pages of Chromium and a Go program.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Browser, Page } from "puppeteer-core";
import { chromium, launch } from "./browser.ts";
import { Program, type Running } from "./program.ts";
import { until } from "./suite.ts";

/** Draws a line on a page with the mouse, through places on the board. */
async function draw(page: Page, ...places: [number, number][]): Promise<void> {
  await page.bringToFront();
  const box = await (await page.$("#board"))?.boundingBox();
  assert.ok(box);
  for (const [i, [x, y]] of places.entries()) {
    await page.mouse.move(box.x + (x / 1600) * box.width, box.y + (y / 1000) * box.height, { steps: 5 });
    if (i === 0) await page.mouse.down();
  }
  await page.mouse.up();
}

/** Takes the picture of the README: each page draws a wave. */
async function picture(pages: Page[], path: string): Promise<void> {
  for (const [i, page] of pages.entries()) {
    await page.evaluate((i) => (document.querySelectorAll("#palette input")[i] as HTMLElement).click(), 2 + i);
    const wave = Array.from({ length: 90 }, (_, x): [number, number] => [
      110 + 15.5 * x,
      820 + 80 * i + 60 * Math.sin(x / (6 + 2 * i)),
    ]);
    await draw(page, ...wave);
  }
  await pages[0]?.bringToFront();
  await pages[0]?.screenshot({ path });
}

/** Reports whether something is drawn at a place of the board, or close to it. */
function drawnAt(page: Page, x: number, y: number): Promise<boolean> {
  return page.evaluate(
    (x, y) => {
      const pen = (document.getElementById("board") as HTMLCanvasElement).getContext("2d");
      return pen?.getImageData(x - 4, y - 4, 9, 9).data.some((v) => v > 0) ?? false;
    },
    x,
    y,
  );
}

function textOf(page: Page, id: string): Promise<string> {
  return page.evaluate((id) => document.getElementById(id)?.textContent ?? "", id);
}

describe("the drawing board", { skip: chromium ? false : "Chromium is not installed" }, () => {
  let program: Program;
  let server: Running;
  let address: string;
  let browser: Browser;
  let pages: Page[];
  const errors: string[] = [];
  const all = (what: string, is: (p: Page) => Promise<boolean>) =>
    until(what, async () => (await Promise.all(pages.map(is))).every((v) => v));

  before(async () => {
    program = new Program("examples/board");
    server = program.start("-listen", "127.0.0.1:0");
    address = (await server.says(/http:\/\/(\S+)/))[1] as string;
    browser = await launch({ networkEnabled: false }); // or reports of requests would slow down those that the page measures
    pages = [await browser.newPage(), await browser.newPage()];
    for (const page of pages) {
      page.on("pageerror", (e) => errors.push(String(e)));
      await page.setViewport({ width: 1000, height: 720 });
      await page.goto(`http://${address}/`);
    }
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });

  test("two pages see each other's strokes", async () => {
    await all("both know of each other", async (p) => (await textOf(p, "people")) === "2 people");
    const [one, two] = pages as [Page, Page];
    await draw(one, [200, 200], [600, 200]);
    await draw(two, [200, 300], [600, 300]);
    await all("both lines are there", async (p) => (await drawnAt(p, 400, 200)) && (await drawnAt(p, 400, 300)));
    assert.equal(await drawnAt(one, 400, 250), false);
  });

  test("a Go program draws with them", async () => {
    const flower = program.start("-draw", `ws://${address}/calls`);
    await flower.says(/people on the board: 3/);
    await flower.says(/points of others: \d{2}/); // what was drawn before
    await all("all petals are there", async (p) => (await drawnAt(p, 650, 240)) && (await drawnAt(p, 1064, 458)));
    assert.equal(await flower.stop(), 0);
    await all("it has left", async (p) => (await textOf(p, "people")) === "2 people");
  });

  test("round trips are measured with both transports", async () => {
    const [one] = pages as [Page];
    await one.bringToFront();
    await one.click("#measure");
    await until("there are rates", async () => /times$/.test(await textOf(one, "rates")));
    const text = await textOf(one, "rates");
    console.log(text);
    assert.match(text, /^calls a second: [\d,]+ over the WebSocket, [\d,]+ over HTTP: /);
    if (process.env.BOARD_PICTURE) await picture(pages, process.env.BOARD_PICTURE);
  });

  test("the server restarts", async () => {
    assert.equal(await server.stop(), 0);
    server = program.start("-listen", address);
    await server.says(/http:/);
    await all("both are back", async (p) => (await textOf(p, "people")) === "2 people");
    const [one, two] = pages as [Page, Page];
    await draw(two, [200, 800], [600, 800]);
    await until("the first page has the new stroke", () => drawnAt(one, 400, 800));
    const late = await browser.newPage();
    pages.push(late);
    await late.goto(`http://${address}/`);
    await until(
      "a page that comes later has what was drawn before the restart",
      async () => (await drawnAt(late, 400, 200)) && (await drawnAt(late, 400, 300)) && (await drawnAt(late, 400, 800)),
    );
  });

  test("everything is cleared, for all", async () => {
    const [one] = pages as [Page];
    await one.bringToFront();
    await one.click("#clear");
    await all("the boards are empty", async (p) => !(await drawnAt(p, 400, 200)) && !(await drawnAt(p, 400, 800)));
    assert.deepEqual(errors, []);
  });
});
