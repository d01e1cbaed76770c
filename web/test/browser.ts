// A headless Chromium, and pages for it.

import { existsSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { build } from "esbuild";
import puppeteer, { type Browser, type LaunchOptions } from "puppeteer-core";

/** Where Chromium is; undefined if it is not installed. */
export const chromium = [
  process.env.CHROMIUM,
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
].find((p) => p && existsSync(p));

export function launch(options: LaunchOptions = {}): Promise<Browser> {
  return puppeteer.launch({
    ...options,
    executablePath: chromium as string,
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      ...(options.args ?? []),
    ],
  });
}

/** A server of a page that runs a script of this folder. */
export class PageServer {
  readonly #server: Server;
  readonly origin: string;

  private constructor(server: Server) {
    this.#server = server;
    this.origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  static async start(script: string): Promise<PageServer> {
    const bundle = await build({
      entryPoints: [new URL(script, import.meta.url).pathname],
      bundle: true,
      write: false,
      format: "iife",
      target: "es2022",
    });
    const server = createServer((req, res) => {
      const isScript = req.url === "/script.js";
      res.setHeader("content-type", isScript ? "text/javascript" : "text/html; charset=utf-8");
      res.end(
        isScript
          ? bundle.outputFiles[0]?.contents
          : '<!doctype html><title>test</title><script src="/script.js"></script>',
      );
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return new PageServer(server);
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}
