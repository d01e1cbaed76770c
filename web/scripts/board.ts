// Builds the script of the drawing board's page, examples/board/assets/board.js. With --check it fails if
// the committed one is another.

import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const file = new URL("../../examples/board/assets/board.js", import.meta.url);
const out = await build({
  entryPoints: [new URL("../board/page.ts", import.meta.url).pathname],
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: "es2022",
  legalComments: "none",
});
const script = out.outputFiles[0]?.contents as Uint8Array;
if (!process.argv.includes("--check")) writeFileSync(file, script);
else if (!readFileSync(file).equals(script)) throw new Error("board.js is not current: make web-board builds it");
