// Builds the scripts of the examples' pages. With --check it fails if a committed one is another.

import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const pages = { "board/page.ts": "examples/board/assets/board.js", "greeter/page.ts": "connect/example/page.js" };

for (const [source, name] of Object.entries(pages)) {
  const file = new URL(`../../${name}`, import.meta.url);
  const out = await build({
    entryPoints: [new URL(`../${source}`, import.meta.url).pathname],
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: "es2022",
    legalComments: "none",
  });
  const script = out.outputFiles[0]?.contents as Uint8Array;
  if (!process.argv.includes("--check")) writeFileSync(file, script);
  else if (!readFileSync(file).equals(script)) throw new Error(`${name} is not current: make web-pages builds it`);
}
