// The suite in Node, with its own WebSocket.

import { after, before, describe, test } from "node:test";
import { type Server, start } from "./server.ts";
import { Site, tests } from "./suite.ts";

describe("in Node", () => {
  let servers: Server[];
  before(async () => {
    servers = [await start(), await start("-calls", "10")];
  });
  after(() => Promise.all(servers.map((s) => s.stop())));
  for (const [name, run] of Object.entries(tests)) {
    test(name, { timeout: 60_000 }, async () => {
      const site = new Site(servers[0]?.url as string, servers[1]?.url as string);
      try {
        await run(site);
      } finally {
        site.close();
      }
    });
  }
});
