// Measures @nearcall/web in Chromium beside what one would use instead: connect-web over HTTP/1.1 and
// HTTP/2, and Cap'n Web. The stacks take turns, so that what else the machine does meets all of them.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism, cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "esbuild";
import type { Browser, Page } from "puppeteer-core";
import { launch } from "../test/browser.ts";
import type { BenchPage, RowName, StackName } from "./page.ts";

export const stacks: StackName[] = ["nearcall", "http1", "capnweb", "nearcallTLS", "http2"];

const everywhere = stacks;
const streamsOnly: StackName[] = ["nearcall", "capnweb", "nearcallTLS"];

/** The rows of the table, with the stacks that have them. */
export const rows: Record<RowName, { title: string; stacks: StackName[] }> = {
  unary: { title: "calls, one at a time", stacks: everywhere },
  unary64: { title: "calls, 64 at a time", stacks: everywhere },
  list: { title: "messages of a server stream of 1,000", stacks: everywhere },
  chat: { title: "round trips on one bidi stream", stacks: streamsOnly },
  callBack: { title: "calls of the server to the page, one at a time", stacks: streamsOnly },
  large: { title: "calls with 1 MB each way, one at a time", stacks: everywhere },
};

const rowNames = Object.keys(rows) as RowName[];

export interface Sample {
  rate: number; // a second
  cpu: number; // of the server, in microseconds for each call; NaN if that is not known
}

/** By row, stack and round. */
export type Samples = Record<RowName, Partial<Record<StackName, Sample[]>>>;

/** A server in a process of its own. */
class Program {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  #text = "";

  constructor(file: string, ...args: string[]) {
    this.#child = spawn(file, args, { stdio: ["pipe", "pipe", "inherit"] });
    this.#ended = new Promise((resolve) => this.#child.on("exit", resolve));
  }

  /** The words of the line that it prints. */
  async line(): Promise<string[]> {
    const stdout = this.#child.stdout as NodeJS.ReadableStream;
    return new Promise((resolve, reject) => {
      stdout.on("data", (b) => {
        this.#text += b;
        if (this.#text.includes("\n")) resolve(this.#text.trim().split(" "));
      });
      this.#child.on("exit", (code) => reject(new Error(`a server has ended with ${code}`)));
    });
  }

  /** The CPU time that it has used, in microseconds. Only Linux tells. */
  get cpu(): number {
    if (process.platform !== "linux") return Number.NaN;
    const fields = readFileSync(`/proc/${this.#child.pid}/stat`, "utf8").split(") ")[1]?.split(" ") as string[];
    return (Number(fields[11]) + Number(fields[12])) * 10_000; // Linux counts hundredths of a second
  }

  stop(): Promise<unknown> {
    this.#child.stdin?.end();
    return this.#ended;
  }
}

/** The servers, and a browser with a page for each origin. */
export class Bench {
  readonly version: string;
  readonly #browser: Browser;
  readonly #go: Program;
  readonly #node: Program;
  readonly #pages: Map<StackName, Page>;

  private constructor(version: string, browser: Browser, go: Program, node: Program, pages: Map<StackName, Page>) {
    this.version = version;
    this.#browser = browser;
    this.#go = go;
    this.#node = node;
    this.#pages = pages;
  }

  static async start(): Promise<Bench> {
    const folder = mkdtempSync(join(tmpdir(), "nearcall-web-bench-"));
    const program = join(folder, "server");
    execFileSync("go", ["build", "-o", program, "./bench/server"], { cwd: new URL("..", import.meta.url) });
    const go = new Program(program);
    const node = new Program(process.execPath, new URL("capnweb.ts", import.meta.url).pathname);
    let browser: Browser | undefined;
    try {
      const [plain, secure] = (await go.line()) as [string, string];
      rmSync(folder, { recursive: true });
      const [capnweb] = (await node.line()) as [string];
      // The browser would otherwise tell this program of each request and of each message on a WebSocket.
      const networkEnabled = false;
      browser = await launch({
        args: ["--ignore-certificate-errors", "--js-flags=--expose-gc"],
        networkEnabled,
      });
      const script = await bundle();
      // Each stack is called from a page of its server's own origin, as a browser asks permission for others.
      const first = await open(browser, plain, script);
      const second = await open(browser, secure, script);
      const pages = new Map<StackName, Page>();
      const add = async (page: Page, name: StackName, url: string) => {
        await page.evaluate((...a) => bench.add(...a), name, url);
        pages.set(name, page);
      };
      await add(first, "nearcall", `${plain}/calls`);
      await add(first, "http1", plain);
      await add(first, "capnweb", capnweb);
      await add(second, "nearcallTLS", `${secure}/calls`);
      await add(second, "http2", secure);
      return new Bench(await browser.version(), browser, go, node, pages);
    } catch (e) {
      await Promise.all([browser?.close(), go.stop(), node.stop()]);
      throw e;
    }
  }

  /** Measures a row of a stack for some milliseconds. */
  async measure(stack: StackName, row: RowName, ms: number): Promise<Sample> {
    const page = this.#pages.get(stack) as Page;
    await page.bringToFront();
    const server = stack === "capnweb" ? this.#node : this.#go;
    const before = server.cpu;
    const r = await page.evaluate((...a) => bench.measure(...a), stack, row, ms);
    return { rate: (r.count / r.ms) * 1000, cpu: (server.cpu - before) / r.count };
  }

  /** Measures all rows in so many rounds, after one that warms up. */
  async run(rounds: number, ms: number, progress: (done: number) => void = () => {}): Promise<Samples> {
    const samples = Object.fromEntries(rowNames.map((row) => [row, {}])) as Samples;
    for (let round = -1; round < rounds; round++) {
      for (const row of rowNames) {
        const turns = rows[row].stacks;
        for (let i = 0; i < turns.length; i++) {
          const stack = turns[(i + round + turns.length) % turns.length] as StackName;
          const sample = await this.measure(stack, row, ms);
          if (round < 0) continue;
          samples[row][stack] ??= [];
          samples[row][stack].push(sample);
        }
      }
      progress(round + 1);
    }
    return samples;
  }

  /** The protocols over which the requests of a stack were made. */
  async protocols(stack: StackName): Promise<Set<string>> {
    return new Set(await this.#pages.get(stack)?.evaluate(() => bench.protocols()));
  }

  async stop(): Promise<void> {
    await this.#browser.close();
    await Promise.all([this.#go.stop(), this.#node.stop()]);
  }
}

declare const bench: BenchPage;

async function bundle(): Promise<string> {
  const out = await build({
    entryPoints: [new URL("page.ts", import.meta.url).pathname],
    bundle: true,
    write: false,
    format: "iife",
    target: "es2022",
  });
  return out.outputFiles[0]?.text as string;
}

/** Opens a page of an origin. Its server has none, and the text of its 404 serves as one. */
async function open(browser: Browser, origin: string, script: string): Promise<Page> {
  const page = await browser.newPage();
  await page.goto(origin);
  await page.addScriptTag({ content: script });
  return page;
}

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (i: number) => sorted[Math.floor(i)] as number;
  return (at((sorted.length - 1) / 2) + at(sorted.length / 2)) / 2;
}

/** The median over rounds of a stack's rate to another's. */
export function ratio(samples: Samples, row: RowName, stack: StackName, other: StackName): number | undefined {
  const [a, b] = [samples[row][stack], samples[row][other]];
  return a && b && median(a.map((s, i) => s.rate / (b[i] as Sample).rate));
}

const number = (n: number) => (n < 100 ? n.toPrecision(2) : Math.round(n).toLocaleString("en"));

/** The table in Markdown. */
export function table(samples: Samples, version: string, ms: number): string {
  const rate = (row: RowName, stack: StackName) => {
    const s = samples[row][stack];
    return s ? number(median(s.map((x) => x.rate))) : "–";
  };
  const times = (row: RowName, stack: StackName, other: StackName) => {
    const r = ratio(samples, row, stack, other);
    return r === undefined ? "–" : `${r < 9.95 ? r.toFixed(1) : Math.round(r)}×`;
  };
  const lines = rowNames.map((row) =>
    [
      rows[row].title,
      rate(row, "nearcall"),
      rate(row, "http1"),
      times(row, "nearcall", "http1"),
      rate(row, "capnweb"),
      times(row, "nearcall", "capnweb"),
      rate(row, "nearcallTLS"),
      rate(row, "http2"),
      times(row, "nearcallTLS", "http2"),
    ].join(" | "),
  );
  const rounds = samples.unary.nearcall?.length;
  const cpu = (stack: StackName) => median((samples.unary64[stack] ?? []).map((s) => s.cpu)).toFixed(0);
  return `| a second | nearcall | connect-web, HTTP/1.1 | nearcall to it | Cap'n Web | nearcall to it | nearcall, TLS | connect-web, HTTP/2, TLS | nearcall to it |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
${lines.map((line) => `| ${line} |`).join("\n")}

${version}, Node ${process.versions.node}, ${availableParallelism()} CPUs (${cpus()[0]?.model.trim()}), ${new Date().toISOString().slice(0, 10)}; medians of
${rounds} rounds, in which the stacks take turns of ${ms} ms. At 64 calls at a time the servers use for a call, in µs of CPU: nearcall ${cpu("nearcall")}, over TLS ${cpu("nearcallTLS")},
connect-web's over HTTP/1.1 (nearcall) ${cpu("http1")}, over HTTP/2 (connect-go) ${cpu("http2")}, Cap'n Web's (Node) ${cpu("capnweb")}.
`;
}
