// Starts the server of testserver, in Node.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

let program: string | undefined;

/** Builds the server, once. */
function build(): string {
  if (!program) {
    program = join(mkdtempSync(join(tmpdir(), "nearcall-web-")), "testserver");
    execFileSync("go", ["build", "-o", program, "./testserver"], {
      cwd: new URL("..", import.meta.url),
      stdio: ["ignore", "inherit", "inherit"],
    });
  }
  return program;
}

export interface Server {
  url: string;
  /** Stops the server gracefully, without waiting. */
  drain(): void;
  stop(): Promise<void>;
}

/** Starts a server with flags. */
export async function start(...flags: string[]): Promise<Server> {
  const child: ChildProcess = spawn(build(), flags, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise<void>((resolve) => child.on("exit", () => resolve()));
  const url = await new Promise<string>((resolve, reject) => {
    let text = "";
    child.stdout?.on("data", (b) => {
      text += b;
      if (text.endsWith("\n")) resolve(text.trim());
    });
    child.on("exit", (code) => reject(new Error(`the server has ended with ${code}`)));
  });
  return {
    url,
    drain: () => child.stdin?.write("stop\n"),
    stop: () => {
      child.stdin?.end();
      return ended;
    },
  };
}
