// A program that was written for calls over HTTP is moved over by the line that creates its transport.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { createNearcallTransport } from "../src/index.ts";
import { NoteSchema, Probe } from "./gen/probepb/probe_pb.ts";
import { type Server, start } from "./server.ts";

/** The program. It returns what it has seen. */
async function program(transport: Transport): Promise<unknown[]> {
  const seen: unknown[] = [];
  const client = createClient(Probe, transport);
  const note = await client.echo(
    { text: "hello", n: 1n << 60n, data: new Uint8Array([0, 255]) },
    { headers: { "x-one": "1" }, timeoutMs: 60_000 },
  );
  seen.push([note.text, note.n, note.data]);
  for await (const { n } of client.list({ count: 3 })) seen.push(n);
  const metadata = (h: Headers) =>
    seen.push(["which", "x-text", "x-list", "x-data-bin"].map((k) => h.get(k)?.replaceAll("=", "")));
  await client.echo({ text: "!header" }, { onHeader: metadata, onTrailer: metadata });
  const failure = (e: unknown) => {
    assert.ok(e instanceof ConnectError);
    seen.push([e.code, e.rawMessage, e.findDetails(NoteSchema).map((d) => [d.text, d.n])]);
  };
  await client.echo({ text: "!details" }).catch(failure);
  await client.echo({ text: "!fail" }).catch(failure);
  const given = new AbortController();
  setTimeout(() => given.abort(), 50);
  await client.echo({ text: "!hang" }, { signal: given.signal }).catch((e) => seen.push(e.code));
  await client.echo({ text: "!hang" }, { timeoutMs: 50 }).catch((e) => seen.push(e.code));
  return seen;
}

let server: Server;
before(async () => {
  server = await start("-listen", "tcp:127.0.0.1:0"); // outside the test's timeout: it builds the server
});
after(() => server.stop());

test("a client that was written for HTTP behaves the same over nearcall's transport, on the same port", {
  timeout: 60_000,
}, async () => {
  const host = server.url.replace("tcp:", "");
  const over = createNearcallTransport({ url: `ws://${host}/calls` });
  const got = await program(over);
  over.close();
  assert.equal(got.length, 10);
  assert.deepEqual(got, await program(createConnectTransport({ baseUrl: `http://${host}` })));
  assert.deepEqual(got, await program(createGrpcWebTransport({ baseUrl: `http://${host}` })));
});
