// Makes calls for the table of docs/semantics.md, in Node and in Chromium. The test in
// interop/clients runs it, writes the cells to its standard input, and reads from its standard
// output what the calls were like.

import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import type { Transport } from "@connectrpc/connect";
import * as node from "@connectrpc/connect-node";
import WebSocket from "ws";
import { createNearcallTransport, type WebSocketClass } from "../src/index.ts";
import { chromium, launch, PageServer } from "./browser.ts";
import { type Cell, callAll, Orders } from "./tablecalls.ts";

interface Input {
  /** A FileDescriptorSet in base64. */
  Files: string;
  Cells: Cell[];
}

const { Files, Cells } = JSON.parse(await text(process.stdin)) as Input;
if (!Cells[0]?.Client.endsWith("in Chromium")) {
  const orders = new Orders(Files);
  await Promise.all(Cells.map((cell) => inNode(cell, orders)));
} else if (!chromium) {
  for (const cell of Cells) cell.Skip = "Chromium is not installed";
} else {
  await inChromium(chromium);
}
process.stdout.write(JSON.stringify(Cells), () => process.exit()); // connect-node keeps connections

async function inNode(cell: Cell, orders: Orders): Promise<void> {
  const read = (name: string) => (name ? readFileSync(name) : undefined);
  const secrets = { ca: read(cell.CA), cert: read(cell.Cert), key: read(cell.Key) };
  if (cell.Protocol === "WebSocket") {
    const Secure = class extends WebSocket {
      constructor(url: string, protocols: string) {
        super(url, protocols, secrets);
      }
    } as unknown as WebSocketClass;
    const url = `${cell.TLS ? "wss" : "ws"}://${cell.Address}/calls`;
    const transport = createNearcallTransport({ url, WebSocket: Secure });
    await callAll(cell, orders, transport, true);
    transport.close();
    return;
  }
  const baseUrl = `${cell.TLS ? "https" : "http"}://${cell.Address}`;
  const httpVersion = cell.Version === "2" ? "2" : "1.1";
  const transports: Record<string, () => Transport> = {
    Connect: () => node.createConnectTransport({ baseUrl, httpVersion, nodeOptions: secrets }),
    "gRPC-Web": () => node.createGrpcWebTransport({ baseUrl, httpVersion, nodeOptions: secrets }),
    gRPC: () => node.createGrpcTransport({ baseUrl, nodeOptions: secrets }),
  };
  await callAll(cell, orders, transports[cell.Protocol]?.() as Transport, httpVersion === "2");
}

async function inChromium(executablePath: string): Promise<void> {
  const pages = await PageServer.start("tablepage.ts");
  const browser = await launch({ executablePath, args: ["--ignore-certificate-errors"] });
  try {
    const page = await browser.newPage();
    await page.goto(pages.origin);
    const done = await page.evaluate(
      (files, cells) =>
        (globalThis as unknown as { run(files: string, cells: Cell[]): Promise<Cell[]> }).run(files, cells),
      Files,
      Cells,
    );
    done.forEach((cell, i) => {
      Cells[i] = cell;
    });
  } finally {
    await browser.close();
    pages.stop();
  }
}
