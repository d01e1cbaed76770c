// Makes calls for the table of docs/semantics.md in a page.

import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { createNearcallTransport } from "../src/index.ts";
import { type Cell, callAll, Orders } from "./tablecalls.ts";

Object.assign(globalThis, {
  async run(files: string, cells: Cell[]): Promise<Cell[]> {
    const orders = new Orders(files);
    for (const cell of cells) {
      if (cell.Protocol === "WebSocket") {
        const transport = createNearcallTransport({ url: `${cell.TLS ? "wss" : "ws"}://${cell.Address}/calls` });
        await callAll(cell, orders, transport, true);
        transport.close();
        continue;
      }
      const baseUrl = `${cell.TLS ? "https" : "http"}://${cell.Address}`;
      const create = cell.Protocol === "Connect" ? createConnectTransport : createGrpcWebTransport;
      await callAll(cell, orders, create({ baseUrl }), false);
    }
    return cells;
  },
});
