// The decoder and encoder against the vectors of nearcall's own tests.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { work } from "../test/work.ts";
import { ProtocolError } from "./bytes.ts";
import { toHeaders } from "./metadata.ts";
import { writeStatus } from "./status.ts";
import { Decoder, Encoder, type Frame, Kind, type Metadata, plainEnd, type StreamFrame } from "./wire.ts";

const vectors = new URL("../../internal/wire/testdata/", import.meta.url);

interface VectorFrame {
  kind: string;
  stream?: number;
  flags?: string[];
  hello?: Record<string, number>;
  code?: number;
  text?: string;
  n?: number;
  bytes?: string;
  size?: number;
  method?: string;
  profile?: string[];
  timeout?: string;
  metadata?: [string, string][];
  trailer?: [string, string][];
  status?: { code: number; message?: string; details?: string };
}

interface Vector {
  about: string;
  from: "client" | "server";
  hex: string[];
  frames?: VectorFrame[];
  ends?: "connection" | "call";
  places?: boolean;
  said?: Remark[];
}

interface Remark {
  from: "client" | "server";
  hex: string;
  frame?: VectorFrame;
}

function read(dir: string): [string, Vector][] {
  const names = readdirSync(new URL(dir, vectors)).sort();
  return names.map((name) => [name, JSON.parse(readFileSync(new URL(dir + name, vectors), "utf8"))]);
}

const bytes = (hex: string) => Uint8Array.from(Buffer.from(hex, "hex"));
const greeting = bytes("6e65617263616c6c2f310a");
const hex = (b: Uint8Array) => Buffer.from(b).toString("hex");

/** Decodes frames that follow the line, in chunks of a size. */
function decode(v: Vector, block: number, chunk = Number.POSITIVE_INFINITY): Frame[] {
  const d = new Decoder(block, v.from);
  const frames: Frame[] = [];
  const whole = v.hex[0] === hex(greeting) ? v.hex : [hex(greeting), ...v.hex];
  const all = bytes(whole.join(""));
  for (let at = 0; at < all.length; at += chunk)
    d.push(all.subarray(at, at + Math.min(chunk, all.length)), (f) => frames.push(f));
  return frames;
}

/** What a vector says of bytes: all, or the first of many. */
const shown = (b: Uint8Array) => (b.length > 64 ? `${hex(b.subarray(0, 16))}... (${b.length} bytes)` : hex(b));

function shownMetadata(m: Metadata | undefined): [string, string][] | undefined {
  if (!m || m.length === 0) return undefined;
  return m.map(([k, v]) => {
    const value = Buffer.from(v, "latin1");
    const text = (b: Buffer) => (k.endsWith("-bin") ? b.toString("hex") : b.toString("utf8"));
    return [k, value.length > 100 ? `${text(value.subarray(0, 20))}... (${value.length} bytes)` : text(value)];
  });
}

const microseconds = (d: string) => {
  const units: Record<string, number> = { h: 3.6e9, m: 6e7, s: 1e6, ms: 1e3, µs: 1 };
  let n = 0;
  for (const [, x, unit] of d.matchAll(/([0-9.]+)(h|ms|m|s|µs)/g)) n += Number(x) * (units[unit as string] as number);
  return n;
};

/** Larger numbers are read as 2^53. */
const exact = (n = 0) => Math.min(n, 2 ** 53);

function compare(f: Frame, want: VectorFrame): void {
  switch (f.kind) {
    case Kind.hello: {
      const h = f.hello;
      const w = want.hello as Record<string, number>;
      assert.deepEqual(
        [h.version, h.features, h.stream, h.connection, h.calls, h.block, h.ping, h.idlePing],
        [w.Version, w.Features, w.Stream, w.Connection, w.Calls, w.Block, w.Ping, w.IdlePing].map(exact),
      );
      break;
    }
    case Kind.reset:
    case Kind.bye:
      assert.deepEqual([f.code, f.text], [want.code ?? 0, want.text ?? ""]);
      break;
    case Kind.credit:
      assert.deepEqual([f.stream, f.n], [want.stream ?? 0, exact(want.n)]);
      break;
    case Kind.ping:
    case Kind.pong:
      assert.equal(hex(f.data), want.bytes);
      break;
    case Kind.drain:
      assert.equal(f.last, exact(want.n));
      break;
    case Kind.stream:
      compareStep(f, want);
  }
}

function compareStep(f: StreamFrame, want: VectorFrame): void {
  const flags = [
    f.head || f.header ? "HEAD" : "",
    f.begins ? "MESSAGE" : "",
    f.goesOn ? "PIECE" : "",
    f.more ? "MORE" : "",
    f.end || f.halfClose ? "END" : "",
    f.compressed ? "COMPRESSED" : "",
  ];
  assert.deepEqual([f.stream, flags.filter(Boolean)], [want.stream, want.flags]);
  assert.equal(f.wrong, undefined);
  if (f.head) {
    const p = f.head.profile;
    assert.equal(f.head.method, want.method);
    assert.deepEqual([p.authority, p.userAgent, p.subtype, p.encoding, p.accept], want.profile);
    assert.equal(f.head.timeout, microseconds(want.timeout ?? ""));
  }
  assert.deepEqual(shownMetadata(f.head?.metadata ?? f.header), want.metadata);
  assert.deepEqual(shownMetadata(f.end?.trailer), want.trailer);
  if (f.end) {
    assert.deepEqual(
      [f.end.code, f.end.message, hex(f.end.status)],
      [want.status?.code ?? 0, want.status?.message ?? "", want.status?.details ?? ""],
    );
  }
  if (f.data && (f.data.length > 0 || want.bytes)) assert.equal(shown(f.data), want.bytes);
  if (f.begins && f.more) assert.equal(f.size, want.size);
}

for (const [name, v] of read("frames/")) {
  if (name.startsWith("places")) continue; // over shared memory alone
  test(`decodes ${name}`, () => {
    const want = (v.frames as VectorFrame[]).filter((f) => f.kind !== "PART");
    for (const chunk of [Number.POSITIVE_INFINITY, 1, 7, 70_000]) {
      const frames = decode(v, 1 << 20, chunk);
      assert.equal(frames.length, want.length);
      for (const [i, f] of frames.entries()) compare(f, want[i] as VectorFrame);
    }
  });
  if (v.hex.join("").length / 2 < 60_000 && !/^(compressed|large-numbers)/.test(name)) {
    test(`encodes ${name}`, () => {
      const e = new Encoder();
      for (const f of decode(v, 1 << 20)) encode(e, f);
      const line = v.hex[0] === hex(greeting) ? hex(greeting) : "";
      assert.equal(line + hex(e.take()), v.hex.join(""));
    });
  }
}

function encode(e: Encoder, f: Frame): void {
  switch (f.kind) {
    case Kind.hello:
      return e.hello(f.hello);
    case Kind.stream:
      return e.stream(f);
    case Kind.reset:
      return e.reset(f.stream, f.code, f.text);
    case Kind.credit:
      return e.credit(f.stream, f.n);
    case Kind.ping:
    case Kind.pong:
      return e.ping(f.kind, f.data);
    case Kind.drain:
      return e.drain(f.last);
    case Kind.bye:
      return e.bye(f.code, f.text);
  }
}

for (const [name, v] of read("refused/")) {
  if (v.places) continue;
  test(`refuses ${name}: ${v.about}`, () => {
    if (v.ends === "connection") assert.throws(() => decode(v, 16384), ProtocolError);
    else assert.ok((decode(v, 16384).at(-1) as StreamFrame).wrong);
  });
}

for (const [name, v] of read("conversations/")) {
  test(`follows the conversation ${name}`, () => {
    for (const from of ["client", "server"] as const) {
      const said = (v.said as Remark[]).filter((r) => r.from === from);
      const frames = decode({ about: v.about, from, hex: said.map((r) => r.hex) }, 1 << 20);
      assert.equal(frames.length, said.length - 1);
      for (const [i, f] of frames.entries()) compare(f, said[i + 1]?.frame as VectorFrame);
    }
  });
}

test("delivers of metadata what the vectors say", () => {
  type Pairs = [string, string][];
  const all: { from: "client" | "server"; hex: string; sent: Pairs; delivered: Pairs }[] = JSON.parse(
    readFileSync(new URL("metadata.json", vectors), "utf8"),
  );
  const latin1 = (pairs: Pairs) =>
    pairs.map(([k, v]) => [k, Buffer.from(v, "hex").toString("latin1")] as [string, string]);
  for (const { from, hex, sent, delivered } of all) {
    const f = decode({ about: "", from, hex: [hex] }, 1 << 20)[0] as StreamFrame;
    const got = f.head?.metadata ?? f.header ?? f.end?.trailer;
    assert.deepEqual(got, latin1(sent));
    const want = new Headers();
    for (const [k, v] of latin1(delivered)) want.append(k, k.endsWith("-bin") ? btoa(v).replace(/=+$/, "") : v);
    assert.deepEqual([...toHeaders(got)], [...want]);
  }
});

test("what is encoded in pieces is decoded whole", () => {
  const e = new Encoder();
  e.line();
  const metadata: Metadata = [["long", "x".repeat(200_000)]];
  const profile = { authority: "a", userAgent: "u", subtype: "", encoding: "", accept: "" };
  const data = new Uint8Array(30_000).fill(7);
  e.stream({ stream: 1, head: { method: "/m", profile, timeout: 5, metadata }, begins: true, halfClose: true, data });
  e.stream({ stream: 3, head: { method: "/m", profile, timeout: 0, metadata: [["short", "1"]] } });
  e.stream({ stream: 5, head: { method: "/m", profile, timeout: 0, metadata: [["short", "1"]] } });
  const frames: StreamFrame[] = [];
  new Decoder(1 << 20, "client").push(e.take(), (f) => frames.push(f as StreamFrame));
  assert.deepEqual(
    frames.map((f) => f.head?.metadata),
    [metadata, [["short", "1"]], [["short", "1"]]],
  );
  assert.deepEqual(
    frames.map((f) => f.head?.profile.authority),
    ["a", "a", "a"],
  );
  assert.deepEqual(frames[0]?.data, data);
});

test("a reply with two long blocks becomes two frames", () => {
  const e = new Encoder();
  e.line();
  const header: Metadata = [["h", "x".repeat(100_000)]];
  const trailer: Metadata = [["t", "y".repeat(100_000)]];
  e.stream({
    stream: 1,
    header,
    begins: true,
    data: new Uint8Array(9),
    end: { code: 5, message: "nö", status: new Uint8Array(0), details: [], trailer },
  });
  const frames: StreamFrame[] = [];
  new Decoder(1 << 20).push(e.take(), (f) => frames.push(f as StreamFrame));
  assert.equal(frames.length, 2);
  assert.deepEqual(
    [frames[0]?.header, frames[0]?.data?.length, frames[1]?.end?.trailer, frames[1]?.end?.message],
    [header, 9, trailer, "nö"],
  );
});

test("a server of another protocol is named", () => {
  assert.throws(
    () => new Decoder(1 << 20).push(Buffer.from("HTTP/1.1 200 OK"), () => {}),
    /does not speak nearcall's protocol.*HTTP\/1.1/,
  );
});

test("numbers beyond 2^53 are read as that, and beyond 2^62 refused", () => {
  const credit = (n: bigint) => {
    const b: number[] = [];
    for (; n >= 0x80n; n >>= 7n) b.push(Number(n & 0x7fn) | 0x80);
    b.push(Number(n));
    const frame = [b.length + 2, 0, Kind.credit, 0, ...b];
    let got = 0;
    new Decoder(1 << 20).push(Uint8Array.from([...greeting, ...frame]), (f) => {
      if (f.kind === Kind.credit) got = f.n;
    });
    return got;
  };
  assert.equal(credit(2n ** 53n - 1n), 2 ** 53 - 1);
  assert.equal(credit(2n ** 53n + 1n), 2 ** 53);
  assert.equal(credit(2n ** 62n - 1n), 2 ** 53);
  assert.throws(() => credit(2n ** 62n), /too large/);
  assert.throws(() => credit(2n ** 63n), /too large/);
});

const block = 1 << 20; // the largest that the decoders below accept

/** Encodes frames after the line. */
function encoded(...frames: ((e: Encoder) => void)[]): Uint8Array {
  const e = new Encoder();
  e.line();
  for (const f of frames) f(e);
  return e.take();
}

/** Decodes bytes in chunks of a size. */
function decoded(b: Uint8Array, chunk = b.length, from: "server" | "client" = "server"): StreamFrame[] {
  const d = new Decoder(block, from);
  const frames: StreamFrame[] = [];
  for (let at = 0; at < b.length; at += chunk) d.push(b.subarray(at, at + chunk), (f) => frames.push(f as StreamFrame));
  return frames;
}

for (const chunk of [1, 2, 3, 1000, 16_000]) {
  test(`bytes that come in chunks of ${chunk} are copied a few times`, async () => {
    const message = (i: number) => (e: Encoder) =>
      e.stream({ stream: 1, begins: true, data: new Uint8Array([10, 16_000, 0, 65_000][i % 4] as number).fill(i) });
    const b = encoded(...Array.from({ length: 8 }, (_, i) => message(i)));
    let frames: StreamFrame[] = [];
    const copied = await work(() => {
      frames = decoded(b, chunk);
    });
    assert.deepEqual(
      frames.map((f) => [f.data?.length, f.data?.at(-1)]),
      [
        [10, 0],
        [16_000, 1],
        [0, undefined],
        [65_000, 3],
        [10, 4],
        [16_000, 5],
        [0, undefined],
        [65_000, 7],
      ],
    );
    assert.ok(copied < 4 * b.length, `${copied} bytes were copied, of ${b.length}`);
  });
}

test("details of an end are counted before they are read", async () => {
  const field = [0x1a, 0]; // an empty detail
  const status = Uint8Array.from([0x08, 5, ...Array.from({ length: 500_000 }, () => field).flat()]);
  const text = Buffer.from(status).toString("latin1");
  for (const end of [
    { ...plainEnd(5, "gone"), status },
    { ...plainEnd(5, "gone"), trailer: [["grpc-status-details-bin", text]] as Metadata },
  ]) {
    const b = encoded((e) => e.stream({ stream: 1, end }));
    const { bytes } = BinaryReader.prototype;
    let read = 0;
    BinaryReader.prototype.bytes = function () {
      read++;
      return bytes.call(this);
    };
    try {
      assert.match(decoded(b)[0]?.wrong ?? "", /larger than the limit/);
    } finally {
      BinaryReader.prototype.bytes = bytes;
    }
    assert.ok(read <= block / 32, `${read} details were read`);
  }
});

test("an end does not keep the chunk that it came in", () => {
  const details = [{ type: "a.B", value: Uint8Array.of(1, 2, 3) }];
  const end = { ...plainEnd(5, "gone"), status: writeStatus(5, "gone", details), details };
  const f = decoded(
    encoded(
      (e) => e.stream({ stream: 1, begins: true, data: new Uint8Array(60_000) }),
      (e) => e.stream({ stream: 1, end }),
    ),
  )[1];
  assert.deepEqual(f?.end?.details, details);
  for (const kept of [f?.end?.status, f?.end?.details[0]?.value])
    assert.equal(kept?.buffer.byteLength, end.status.length);
});

test("a call by a long profile costs what its frame has", async () => {
  const profile = {
    authority: "a".repeat(30_000),
    userAgent: "u".repeat(30_000),
    subtype: "",
    encoding: "",
    accept: "",
  };
  const head = { method: "/s/M", profile, timeout: 0, metadata: [] };
  const calls = Array.from({ length: 1000 }, (_, i) => (e: Encoder) => e.stream({ stream: 2 * i + 1, head }));
  const b = encoded(...calls);
  let frames: StreamFrame[] = [];
  const n = await work(() => {
    frames = decoded(b, b.length, "client");
  });
  assert.equal(frames[999]?.head?.profile.authority, profile.authority);
  assert.ok(n < 10 * b.length, `${n} operations for ${b.length} bytes`);
});

test("long metadata is made of few parts", async () => {
  const value = "\xff".repeat(500_000);
  const header: Metadata = [["long-bin", value]];
  const b = encoded((e) => e.stream({ stream: 1, header }));
  let frames: StreamFrame[] = [];
  const { fromCharCode } = String;
  let parts = 0;
  String.fromCharCode = (...codes) => {
    parts++;
    return fromCharCode(...codes);
  };
  try {
    frames = decoded(b);
  } finally {
    String.fromCharCode = fromCharCode;
  }
  assert.deepEqual(frames[0]?.header, header);
  assert.ok(parts < 1000, `${parts} parts`);
});
