// The programs of the examples, as one builds them.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "./suite.ts";

export class Program {
  /** The program's own folder. */
  readonly folder = mkdtempSync(join(tmpdir(), "nearcall-example-"));
  readonly #path = join(this.folder, "program");

  constructor(folder: string) {
    execFileSync("go", ["build", "-o", this.#path, "."], {
      cwd: new URL(`../../${folder}`, import.meta.url),
      stdio: ["ignore", "inherit", "inherit"],
    });
  }

  start(...args: string[]): Running {
    return new Running(spawn(this.#path, args, { stdio: ["ignore", "pipe", "inherit"] }));
  }
}

export class Running {
  text = ""; // what it has printed
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;

  constructor(child: ChildProcess) {
    this.#child = child;
    this.#ended = new Promise((resolve) => child.on("exit", resolve));
    child.stdout?.on("data", (b) => {
      this.text += b;
    });
  }

  /** Waits until it has printed what re matches. */
  async says(re: RegExp): Promise<string[]> {
    await until(`the program says ${re}`, () => re.test(this.text));
    return re.exec(this.text) as string[];
  }

  /** Stops it as Ctrl-C does, and returns its exit code. */
  async stop(): Promise<unknown> {
    this.#child.kill("SIGINT");
    return this.#ended;
  }
}
