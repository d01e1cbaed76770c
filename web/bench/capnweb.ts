// The benchmark's server for Cap'n Web, which has none in Go. It prints its URL, and ends with its
// standard input.

import type { AddressInfo } from "node:net";
import { newWebSocketRpcSession, RpcTarget } from "capnweb";
import { WebSocketServer } from "ws";

/** A message, as Probe's Note. */
export interface Item {
  text: string;
  n: number;
  data?: Uint8Array;
}

class Service extends RpcTarget {
  echo(item: Item): Item {
    return item;
  }

  list(count: number, size: number): ReadableStream<Item> {
    const text = "x".repeat(size);
    let n = 0;
    return new ReadableStream({
      pull(to) {
        if (n < count) to.enqueue({ text, n: n++ });
        else to.close();
      },
    });
  }

  chat(items: ReadableStream<Item>): ReadableStream<Item> {
    return items.pipeThrough(new TransformStream());
  }

  async callBack(page: (item: Item) => Promise<Item>, count: number): Promise<number> {
    let n = 0;
    for (; n < count; n++) await page({ text: "from Node", n });
    return n;
  }
}

export type { Service };

const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
server.on("connection", (ws) => newWebSocketRpcSession(ws as unknown as WebSocket, new Service()));
server.on("listening", () => console.log(`ws://127.0.0.1:${(server.address() as AddressInfo).port}/`));
process.stdin.resume().on("end", () => process.exit());
