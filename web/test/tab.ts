// What tab.test.ts makes a page do.

import { createClient } from "@connectrpc/connect";
import { createNearcallTransport } from "../src/index.ts";
import { Probe } from "./gen/probepb/probe_pb.ts";

const shown: boolean[] = []; // for each time that the page was shown, whether it had been put aside
addEventListener("pageshow", (e) => shown.push(e.persisted));

const transport = createNearcallTransport({ url: new URLSearchParams(location.search).get("calls") as string });
const probe = createClient(Probe, transport);
let notes: AsyncIterator<unknown>;

/** What a call returns, or fails with. */
const outcome = (p: Promise<{ text: string }>) =>
  p.then(
    (note) => note.text,
    (e) => String(e),
  );

const tab = {
  shown,
  echo: (text: string) => outcome(probe.echo({ text })),
  /** Starts a stream, and returns when its first message has come. */
  async stream(): Promise<void> {
    notes = probe.list({ count: 1, hang: true })[Symbol.asyncIterator]();
    await notes.next();
  },
  /** What the stream ends with. */
  end: () => outcome(notes.next().then(() => ({ text: "another message" }))),
};
export type Tab = typeof tab;
Object.assign(globalThis, { tab });
