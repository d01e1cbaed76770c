// Packs the package as npm publishes it, and checks the result: its types, its size beside
// connect's own client, and that a fresh project can install and use it.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = new URL("..", import.meta.url).pathname;
const run = (cwd: string, program: string, ...args: string[]) =>
  execFileSync(program, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });

/** The bytes of a script, minified and compressed. */
async function sizeOf(script: string): Promise<number> {
  const out = await build({
    stdin: { contents: script, resolveDir: root },
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: "es2022",
  });
  return gzipSync(out.outputFiles[0]?.contents as Uint8Array, { level: 9 }).length;
}

const limit = 13_000;
const client = `import { createClient } from "@connectrpc/connect"; import { fromBinary, toBinary } from "@bufbuild/protobuf"; console.log(createClient, fromBinary, toBinary);`;
const own = await sizeOf(
  `${client} import { createNearcallTransport } from "./dist/index.js"; console.log(createNearcallTransport);`,
);
const added = own - (await sizeOf(client));
console.log(`size: ${added} bytes more than connect's client alone, compressed; the limit is ${limit}`);
if (added > limit) throw new Error("the package is too large");

rmSync(join(root, "dist"), { recursive: true }); // npm pack builds it
const folder = mkdtempSync(join(tmpdir(), "nearcall-web-"));
try {
  const file = join(folder, run(root, "npm", "pack", "--silent", "--pack-destination", folder).trim());
  console.log(run(root, "node_modules/.bin/publint", "--strict", file).trim());
  console.log(
    run(root, "node_modules/.bin/attw", "--profile", "esm-only", "--no-emoji", "--format", "ascii", file).trim(),
  );

  const own = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ type: "module", private: true }));
  const versions = ["@bufbuild/protobuf", "@connectrpc/connect", "typescript"].map(
    (name) => `${name}@${own.devDependencies[name]}`,
  );
  run(folder, "npm", "install", "--silent", "--no-audit", "--no-fund", file, ...versions);
  writeFileSync(
    join(folder, "index.ts"),
    `import { createNearcallTransport, type NearcallTransport } from "@nearcall/web";
import { serve } from "@nearcall/web/serve";
const transport: NearcallTransport = createNearcallTransport({ url: "ws://localhost:1/" });
const stop: () => void = serve(transport, () => {});
stop();
transport.close();
console.log("the package is used:", transport.state);
`,
  );
  run(
    folder,
    "node_modules/.bin/tsc",
    "--strict",
    "--module",
    "nodenext",
    "--target",
    "es2022",
    "--lib",
    "es2022,dom,dom.iterable",
    "--skipLibCheck",
    "false",
    "--types",
    "",
    "index.ts",
  );
  console.log(run(folder, "node", "index.js").trim());
} finally {
  rmSync(folder, { recursive: true });
}
