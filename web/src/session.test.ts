import assert from "node:assert/strict";
import { test } from "node:test";
import { work } from "../test/work.ts";
import type { Call } from "./call.ts";
import { CallError, Code } from "./errors.ts";
import { Session, type SessionOptions } from "./session.ts";
import {
  Bye,
  Decoder,
  Encoder,
  type Frame,
  type Hello,
  Kind,
  type Metadata,
  messageCost,
  minBlock,
  minWindow,
  noLast,
  Reset,
  type StreamFrame,
} from "./wire.ts";

const settled = () => new Promise<void>((resolve) => setTimeout(resolve, 0));

/** A session, and the other side of its channel. */
class Pair {
  readonly session: Session;
  readonly encoder = new Encoder();
  readonly got: Frame[] = []; // what the session has sent
  chunks = 0; // in how many pieces it came
  closed = false;
  drained = 0;
  ended: CallError | undefined;

  constructor(hello: Partial<Hello> | null = {}, options: Partial<SessionOptions> = {}) {
    const decoder = new Decoder(1 << 20, "client");
    this.session = new Session(
      {
        send: (b) => {
          this.chunks++;
          decoder.push(b, (f) => this.got.push({ ...f }));
        },
        close: () => {
          this.closed = true;
        },
      },
      {
        authority: "example.com",
        userAgent: "test",
        drained: () => this.drained++,
        ended: (why) => {
          assert.equal(this.ended, undefined);
          this.ended = why;
        },
        ...options,
      },
    );
    this.encoder.line();
    if (hello) this.say((e) => e.hello({ ...standard, ...hello }));
  }

  /** Lets the server send frames, in one chunk. */
  say(...frames: ((e: Encoder) => void)[]): void {
    for (const f of frames) f(this.encoder);
    this.session.receive(this.encoder.take());
  }

  step(f: Omit<StreamFrame, "kind">): void {
    this.say((e) => e.stream(f));
  }

  open(message?: Uint8Array, metadata: Metadata = []): Call {
    assert.equal(this.session.slot(), undefined);
    return this.session.open({ method: "/s/M", timeout: 0, metadata }, message);
  }

  /** Answers the last PING. */
  answer(): void {
    const pings = this.got.flatMap((f) => (f.kind === Kind.ping ? [f.data] : []));
    this.say((e) => e.ping(Kind.pong, pings.at(-1) as Uint8Array));
  }

  /** The numbers of DRAINs that were sent. */
  get drains(): number[] {
    return this.got.flatMap((f) => (f.kind === Kind.drain ? [f.last] : []));
  }

  /** The steps of calls that were sent. */
  get steps(): StreamFrame[] {
    return this.got.filter((f) => f.kind === Kind.stream);
  }

  get bye(): { code: number; text: string } | undefined {
    const f = this.got.at(-1);
    return f?.kind === Kind.bye ? { code: f.code, text: f.text } : undefined;
  }
}

const standard: Hello = {
  version: 1,
  features: 0,
  stream: minWindow,
  connection: 1 << 20,
  calls: 0,
  block: minBlock,
  ping: 0,
  idlePing: 0,
};

const ok = { code: 0, message: "", status: new Uint8Array(0), details: [], trailer: [] };
const bytes = (n: number) => new Uint8Array(n).fill(7);

test("the line and HELLO are the first message", () => {
  const p = new Pair(null);
  assert.equal(p.chunks, 1);
  assert.deepEqual(
    p.got.map((f) => f.kind),
    [Kind.hello],
  );
  assert.equal(p.session.usable, false);
});

test("what is written in a turn of the event loop leaves together", async () => {
  const p = new Pair();
  for (let i = 0; i < 100; i++) p.open(bytes(10));
  await Promise.resolve();
  for (let i = 0; i < 100; i++) p.open(bytes(10));
  await settled();
  assert.deepEqual([p.steps.length, p.chunks], [200, 2]);
});

test("a unary call is one frame in each direction", async () => {
  const p = new Pair();
  const call = p.open(bytes(10), [["k", "v"]]);
  await settled();
  const [f] = p.steps;
  assert.deepEqual([p.steps.length, f?.stream, f?.begins, f?.halfClose, f?.data?.length], [1, 1, true, true, 10]);
  assert.deepEqual(
    [f?.head?.method, f?.head?.profile.authority, f?.head?.metadata],
    ["/s/M", "example.com", [["k", "v"]]],
  );
  p.step({ stream: 1, header: [["h", "1"]], begins: true, data: bytes(3), end: { ...ok, trailer: [["t", "2"]] } });
  assert.deepEqual(await call.receive(), bytes(3));
  assert.equal(await call.receive(), undefined);
  assert.deepEqual([call.header, call.end?.trailer, p.session.busy], [[["h", "1"]], [["t", "2"]], false]);
});

test("a message waits for the credit of its call and of the connection", async () => {
  const p = new Pair({ connection: 100_000 });
  const a = p.open();
  const b = p.open();
  let written = 0;
  void a.send(bytes(90_000))?.then(() => written++);
  void b.send(bytes(90_000), true)?.then(() => written++);
  const cost = () => p.steps.reduce((n, f) => n + (f.data?.length ?? 0) + (f.begins ? messageCost : 0), 0);
  await settled();
  assert.ok(cost() > 99_000 && cost() <= 100_000, `${cost()}`);
  p.say((e) => e.credit(0, 200_000));
  await settled();
  assert.equal(cost(), 2 * minWindow);
  p.say((e) => e.credit(1, 100_000));
  await settled();
  assert.equal(written, 1);
  p.say((e) => e.credit(3, 100_000));
  await settled();
  assert.equal(written, 2);
  for (const id of [1, 3]) {
    const pieces = p.steps.filter((f) => f.stream === id && f.data);
    assert.equal(
      pieces.reduce((n, f) => n + (f.data?.length ?? 0), 0),
      90_000,
    );
    assert.deepEqual(
      [pieces[0]?.size, pieces[0]?.begins, pieces.at(-1)?.more === true, pieces.at(-1)?.halfClose === true],
      [90_000, true, false, id === 3],
    );
  }
});

test("the credit of a connection that is used up comes back to calls that wait for it", async () => {
  const p = new Pair({ connection: minWindow, stream: 1 << 20 });
  const a = p.open();
  void a.send(bytes(minWindow - 10));
  await settled();
  const b = p.open(bytes(100));
  await settled();
  for (let i = 0; i < 100; i++) p.say((e) => e.credit(0, 1));
  await settled();
  p.say((e) => e.credit(0, 100));
  await settled();
  assert.ok(
    p.steps.some((f) => f.stream === b.id && f.data?.length),
    "the second call got none",
  );
});

test("messages are received in pieces, beyond the window", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  const got = call.receive();
  const size = 1_000_000;
  let credit = p.session.granted;
  p.step({ stream: 1, header: [] });
  for (let sent = 0, i = 0; sent < size; i++) {
    const n = Math.min(16_000, size - sent);
    credit -= n + (i === 0 ? messageCost : 0);
    assert.ok(credit >= 0, `no credit after ${sent} bytes`);
    p.step({ stream: 1, begins: i === 0, goesOn: i > 0, more: sent + n < size, size, data: bytes(n) });
    sent += n;
    await settled();
    for (const f of p.got.splice(0)) if (f.kind === Kind.credit && f.stream === 1) credit += f.n;
  }
  assert.equal((await got)?.length, size);
});

test("a sender whose messages are consumed can always begin another", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  let credit = p.session.granted;
  p.step({ stream: 1, header: [] });
  for (let i = 0; i < 3000; i++) {
    const n = (i * 7919) % 2000;
    p.step({ stream: 1, begins: true, data: bytes(n) });
    credit -= n + messageCost;
    assert.equal((await call.receive())?.length, n);
    await settled();
    for (const f of p.got.splice(0)) if (f.kind === Kind.credit && f.stream === 1) credit += f.n;
    assert.ok(credit >= 2000 + messageCost, `${credit} bytes of credit are left`);
  }
});

/** A server that obeys credit, and what its client has not received. */
class Sender {
  readonly #pair: Pair;
  readonly #call: Call;
  #credit: number;
  #unread: number[] = []; // the costs of messages
  #seen = 1; // frames

  constructor(pair: Pair, call: Call) {
    const hello = pair.got[0];
    assert.ok(hello?.kind === Kind.hello);
    this.#pair = pair;
    this.#call = call;
    this.#credit = hello.hello.stream;
  }

  /** Fills the window to its last byte with messages of a size and a last smaller one. */
  async fill(window: number, size: number): Promise<void> {
    await settled();
    for (; this.#seen < this.#pair.got.length; this.#seen++) {
      const f = this.#pair.got[this.#seen] as Frame;
      if (f.kind === Kind.credit && f.stream === this.#call.id) this.#credit += f.n;
    }
    for (;;) {
      const room = window - this.#unread.reduce((a, b) => a + b, 0);
      const cost = Math.min(size + messageCost, room);
      if (cost < messageCost) return;
      assert.ok(this.#credit >= cost, `${this.#credit} bytes of credit are left, and ${room} of the window`);
      this.#credit -= cost;
      this.#unread.push(cost);
      this.#pair.step({ stream: this.#call.id, begins: true, data: bytes(cost - messageCost) });
    }
  }

  get unread(): number {
    return this.#unread.length;
  }

  async received(m: Promise<Uint8Array | undefined>): Promise<void> {
    assert.equal((await m)?.length, (this.#unread.shift() as number) - messageCost);
  }
}

test("a server within the window of a call does not wait", async () => {
  for (const window of [minWindow, minWindow + 1, 100_000]) {
    for (const size of [300, 4000, 32_000, 60_000]) {
      for (const early of [false, true]) {
        const p = new Pair({}, { window });
        const call = p.open(bytes(1));
        const sender = new Sender(p, call);
        for (let i = 0; i < 30; i++) {
          if (!early || sender.unread > 0) await sender.fill(window, size);
          for (let n = early ? sender.unread : 1 + (i % sender.unread); n > 0; n--)
            await sender.received(call.receive());
          if (!early) continue;
          const m = call.receive(); // before it is sent
          await sender.fill(window, size);
          await sender.received(m);
        }
      }
    }
  }
});

test("a call beyond the server's limit waits for another to end", async () => {
  const p = new Pair({ calls: 1 });
  const first = p.open(bytes(1));
  let free = false;
  const slot = p.session.slot()?.then(() => {
    free = true;
  });
  await settled();
  assert.equal(free, false);
  first.abandon(Reset.cancelled, new CallError(Code.cancelled, "enough"));
  await slot;
  p.session.open({ method: "/s/N", timeout: 0, metadata: [] }, bytes(1));
  await settled();
  assert.deepEqual(
    p.got.slice(1).map((f) => f.kind),
    [Kind.stream, Kind.reset, Kind.stream],
  );
  p.session.lost("gone");
  await p.session.slot(); // does not wait for ever
});

test("metadata that is too large for the server fails the call", () => {
  const p = new Pair();
  assert.throws(() => p.open(bytes(1), [["k", "v".repeat(17_000)]]), /more than the 16384 that the server takes/);
  assert.equal(p.session.busy, false);
  p.open(bytes(1));
});

test("RESET ends a call with the status of its code", async () => {
  const codes = [1, 4, 14, 14, 13, 8, 14];
  for (const [code, status] of codes.entries()) {
    const p = new Pair();
    const call = p.open(bytes(1));
    p.say((e) => e.reset(1, code, "why"));
    await assert.rejects(
      call.receive(),
      (e: CallError) => e.code === status && e.message === "why" && e.unprocessed === (code === 2),
    );
  }
});

test("what has arrived before a failure is received", async () => {
  for (const fails of [
    (p: Pair) => p.step({ stream: 1, end: { ...ok, code: 5, message: "gone" } }),
    (p: Pair) => p.say((e) => e.reset(1, Reset.exhausted, "gone")),
    (p: Pair) => p.session.lost("gone"),
  ]) {
    const p = new Pair();
    const call = p.open(bytes(1));
    p.step({ stream: 1, header: [], begins: true, data: bytes(1) });
    p.step({ stream: 1, begins: true, data: bytes(2) });
    fails(p);
    assert.deepEqual([await call.receive(), await call.receive()], [bytes(1), bytes(2)]);
    await assert.rejects(call.receive(), /gone/);
  }
});

test("frames of a call above the own DRAIN have no effect", async () => {
  const p = new Pair({}, { accept: () => assert.fail("it is accepted") });
  const own = p.open(bytes(1));
  p.session.drain();
  await settled();
  p.answer();
  const profile = { authority: "", userAgent: "", subtype: "", encoding: "", accept: "" };
  p.step({ stream: 2, head: { method: "/s/M", profile, timeout: 0, metadata: [] } });
  p.step({ stream: 2, begins: true, data: bytes(1) });
  p.say((e) => e.credit(2, 1));
  p.say((e) => e.reset(2, Reset.cancelled, ""));
  p.step({ stream: 1, header: [], begins: true, data: bytes(1), end: ok });
  assert.deepEqual(await own.receive(), bytes(1));
  assert.equal(p.bye?.code, Bye.done);
});

test("a server that takes no calls", () => {
  assert.throws(() => new Pair({ features: 1 }).open(bytes(1)), /takes no calls/);
});

test("BYE right after HELLO says that no call was processed", () => {
  const p = new Pair();
  p.say((e) => e.bye(Bye.closed, "call elsewhere"));
  assert.deepEqual([p.ended?.unprocessed, p.ended?.message.includes("call elsewhere")], [true, true]);
});

test("a call of which something has arrived must not be made again", async () => {
  for (const end of [(e: Encoder) => e.reset(1, Reset.unprocessed, ""), (e: Encoder) => e.drain(0)]) {
    const p = new Pair();
    const call = p.open(bytes(1));
    p.step({ stream: 1, header: [] });
    p.say(end);
    await assert.rejects(call.receive(), (e: CallError) => !e.unprocessed);
  }
});

test("DRAIN fails the calls above its number, and lets the others end", async () => {
  const p = new Pair();
  const first = p.open(bytes(1));
  const second = p.open(bytes(1));
  p.say((e) => e.drain(1));
  await assert.rejects(second.receive(), (e: CallError) => e.unprocessed);
  assert.deepEqual([p.session.usable, p.drained, p.ended], [false, 1, undefined]);
  p.step({ stream: 1, header: [], begins: true, data: bytes(1), end: ok });
  assert.deepEqual(await first.receive(), bytes(1));
  assert.deepEqual([p.bye, p.closed], [{ code: Bye.done, text: "" }, true]);
  assert.ok(p.ended);
});

test("an announced DRAIN fails no call, and one that follows may", async () => {
  const p = new Pair();
  const calls = [p.open(bytes(1)), p.open(bytes(1))];
  p.say((e) => e.drain(noLast));
  assert.deepEqual([p.session.usable, p.drained, p.ended], [false, 1, undefined]);
  p.say((e) => e.drain(1));
  await assert.rejects(calls[1]?.receive() as Promise<unknown>, (e: CallError) => e.unprocessed);
  p.step({ stream: 1, header: [], begins: true, data: bytes(1), end: ok });
  assert.deepEqual(await calls[0]?.receive(), bytes(1));
  assert.equal(p.bye?.code, Bye.done);
});

test("a call of the server is accepted until the server answers a drain", async () => {
  const profile = { authority: "", userAgent: "", subtype: "", encoding: "", accept: "" };
  const head = { method: "/s/M", profile, timeout: 0, metadata: [] };
  for (const who of ["client", "server", "server, and a call of the client ends"]) {
    const accepted: Call[] = [];
    const p = new Pair(
      {},
      {
        accept: (call) => {
          accepted.push(call);
          return Promise.resolve();
        },
      },
    );
    const own = who === "client" || who === "server" ? undefined : p.open(bytes(1));
    if (who === "client") p.session.drain();
    else p.say((e) => e.drain(noLast));
    if (own) p.step({ stream: 1, header: [], begins: true, data: bytes(1), end: ok });
    await settled();
    assert.deepEqual([p.drains, p.bye, p.session.usable], [[noLast], undefined, false], who);
    p.step({ stream: 2, head, begins: true, data: bytes(1), halfClose: true });
    assert.equal(accepted.length, 1, who);
    p.answer();
    await settled();
    assert.deepEqual([p.drains, p.bye], [[noLast, 2], undefined], who);
    p.step({ stream: 4, head });
    p.say((e) => e.reset(2, Reset.cancelled, ""));
    assert.deepEqual([accepted.length, p.bye?.code, p.closed], [1, Bye.done, true], who);
  }
});

test("a server that does not answer a drain is refused after some seconds", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const p = new Pair({}, { accept: () => Promise.resolve() });
  p.session.drain();
  t.mock.timers.tick(9999);
  assert.equal(p.ended, undefined);
  t.mock.timers.tick(1);
  assert.deepEqual([p.drains, p.bye?.code], [[noLast, 0], Bye.done]);
});

test("BYE of the server ends its calls with its text", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  p.say((e) => e.bye(Bye.closed, "maintenance"));
  await assert.rejects(
    call.receive(),
    (e: CallError) => e.code === Code.unavailable && e.message.includes("maintenance"),
  );
  assert.equal(p.closed, true);
});

test("closing says DRAIN and BYE", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  p.session.close();
  await assert.rejects(call.receive(), (e: CallError) => e.code === Code.cancelled);
  assert.deepEqual([p.got.at(-2)?.kind, p.bye?.code, p.closed], [Kind.drain, Bye.closed, true]);
  p.session.close();
  p.step({ stream: 1, header: [] }); // is ignored
});

test("PING is answered at once", async () => {
  const p = new Pair();
  const data = Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8]);
  p.say((e) => e.ping(Kind.ping, data));
  await settled();
  assert.deepEqual(p.got.at(-1), { kind: Kind.pong, data });
});

test("an invalid part of a call ends the call alone", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  const other = p.open(bytes(1));
  p.step({ stream: 1, header: [["Upper", "1"]] });
  await assert.rejects(call.receive(), (e: CallError) => e.code === Code.internal);
  await settled();
  assert.deepEqual([p.got.at(-1)?.kind, (p.got.at(-1) as { code: number }).code], [Kind.reset, Reset.protocol]);
  p.step({ stream: 3, header: [["lower", "1"]], begins: true, data: bytes(1), end: ok });
  assert.deepEqual(await other.receive(), bytes(1));
});

test("what comes for a call that has ended gives its credit back", async () => {
  const p = new Pair({}, { connectionWindow: minWindow });
  const call = p.open(bytes(1));
  call.abandon(Reset.cancelled, new CallError(Code.cancelled, "enough"));
  p.step({ stream: 1, header: [["new-name", "1"]] });
  for (let i = 0; i < 4; i++) p.step({ stream: 1, begins: true, data: bytes(16_000) });
  await settled();
  const given = p.got.reduce((n, f) => (f.kind === Kind.credit && f.stream === 0 ? n + f.n : n), 0);
  assert.ok(given >= 3 * 16_000, `${given} bytes`);
  const next = p.open(bytes(1));
  p.step({ stream: 3, header: [["new-name", "2"]], end: ok }); // by its number
  await next.receive();
  assert.deepEqual(next.header, [["new-name", "2"]]);
});

test("rules that the server breaks end the connection", async () => {
  const hello = (e: Encoder) => e.hello(standard);
  const cases: Record<string, (p: Pair) => void> = {
    "a second HELLO": (p) => p.say(hello),
    "was not made": (p) => p.step({ stream: 9, header: [] }),
    "call 8 was not made": (p) => p.step({ stream: 8, begins: true, data: bytes(1) }),
    "call 7 was not made": (p) => p.say((e) => e.credit(7, 1)),
    "a second header": (p) => {
      p.step({ stream: 1, header: [] });
      p.step({ stream: 1, header: [] });
    },
    "a piece of no message": (p) => p.step({ stream: 1, goesOn: true, data: bytes(1) }),
    "a message is interrupted": (p) => {
      p.step({ stream: 1, header: [], begins: true, more: true, size: 10, data: bytes(1) });
      p.step({ stream: 1, begins: true, data: bytes(1) });
    },
    "not of its size": (p) => {
      p.step({ stream: 1, header: [], begins: true, more: true, size: 10, data: bytes(1) });
      p.step({ stream: 1, goesOn: true, data: bytes(10) });
    },
    "more was sent than its credit allows": (p) => {
      p.step({ stream: 1, header: [] });
      for (let i = 0; i < 10; i++) p.step({ stream: 1, begins: true, data: bytes(60_000) });
    },
    "a DRAIN that says nothing new": (p) =>
      p.say(
        (e) => e.drain(1),
        (e) => e.drain(1),
      ),
    "or a third one": (p) =>
      p.say(
        (e) => e.drain(noLast),
        (e) => e.drain(2),
        (e) => e.drain(1),
      ),
  };
  for (const [rule, breaks] of Object.entries(cases)) {
    const p = new Pair({}, { connectionWindow: 1 << 20 });
    const call = p.open(bytes(1));
    breaks(p);
    assert.equal(p.bye?.code, Bye.protocol, rule);
    assert.ok(p.bye?.text.includes(rule), `${p.bye?.text}, want ${rule}`);
    assert.equal(p.closed, true);
    await assert.rejects(
      async () => {
        while (await call.receive()); // what has arrived before
      },
      (e: CallError) => e.code === Code.unavailable,
    );
  }
  const early = new Pair(null);
  early.say((e) => e.credit(0, 1));
  assert.ok(early.bye?.text.includes("not HELLO"));
});

test("a compressed message, which the session does not accept, fails its call with Internal", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  p.encoder.stream({ stream: 1, header: [], begins: true, data: bytes(5) });
  const frame = p.encoder.take();
  const kind = frame.indexOf(Kind.stream | 1 | 2); // with a block, and the beginning of a message
  frame[kind] = (frame[kind] as number) | 0x20;
  p.session.receive(frame);
  await assert.rejects(call.receive(), (e: CallError) => e.code === Code.internal && /compressed/.test(e.message));
  await settled();
  assert.deepEqual([p.got.at(-1)?.kind, p.session.usable], [Kind.reset, true]);
});

test("an end that comes after the deadline does not count, however late the timer is", async () => {
  const p = new Pair();
  const open = () => {
    assert.equal(p.session.slot(), undefined);
    return p.session.open({ method: "/s/M", timeout: 10_000, metadata: [] });
  };
  const [intime, late, failed] = [open(), open(), open()];
  p.step({ stream: 1, end: ok });
  for (const begun = performance.now(); performance.now() < begun + 15; ); // no timer can fire
  p.step({ stream: 3, header: [], begins: true, data: bytes(5), end: { ...ok, trailer: [["t", "1"]] } });
  p.step({ stream: 5, end: { ...ok, code: 5, message: "no" } });
  assert.equal(await intime.receive(), undefined);
  assert.deepEqual(await late.receive(), bytes(5));
  for (const call of [late, failed]) {
    await assert.rejects(call.receive(), (e: CallError) => e.code === Code.deadlineExceeded && e.trailer.length === 0);
    assert.equal(call.end, undefined);
  }
});

const head = {
  method: "/s/M",
  profile: { authority: "", userAgent: "", subtype: "", encoding: "", accept: "" },
  timeout: 0,
  metadata: [],
};

test("calls of the server are accepted, or not", async () => {
  const refuses = new Pair();
  refuses.step({ stream: 2, head, begins: true, data: bytes(1) });
  await settled();
  assert.deepEqual((refuses.got.at(-1) as { code: number }).code, Reset.unprocessed);

  const calls: Call[] = [];
  const p = new Pair({}, { accept: async (c) => void calls.push(c) });
  p.step({ stream: 2, head, begins: true, halfClose: true, data: bytes(5) });
  const call = calls[0] as Call;
  assert.deepEqual([await call.receive(), await call.receive()], [bytes(5), undefined]);
  call.sendHeader([["h", "1"]]);
  let written = false;
  const sent = call.send(bytes(200_000))?.then(() => {
    // more than the window
    written = true;
  });
  await settled();
  assert.equal(written, false);
  p.say((e) => e.credit(2, 200_000));
  await sent;
  call.sendEnd({ ...ok, trailer: [["t", "1"]] });
  await settled();
  assert.deepEqual([p.steps.at(-1)?.end?.trailer, p.session.busy], [[["t", "1"]], false]);

  p.step({ stream: 4, head });
  p.say((e) => e.reset(4, Reset.cancelled, ""));
  assert.deepEqual([calls[1]?.over, calls[1]?.error?.code], [true, Code.cancelled]);
});

test("calls are refused beside as many open ones, and wait beside as many handlers", async () => {
  const done: (() => void)[] = [];
  const p = new Pair({}, { accept: () => new Promise((resolve) => done.push(resolve)) });
  const refused = () => p.got.filter((f) => f.kind === Kind.reset && f.code === Reset.unprocessed).length;
  let last = 0;
  const call = () => {
    last += 2;
    p.step({ stream: last, head });
  };
  const reset = () => p.say((e) => e.reset(last, Reset.cancelled, ""));
  const seen = async () => {
    await settled();
    return [done.length, refused()];
  };
  for (let i = 0; i < 1000; i++) {
    call();
    reset();
  }
  call();
  assert.deepEqual(await seen(), [1000, 0]); // the last one is open, and waits
  call();
  reset();
  done[0]?.();
  assert.deepEqual(await seen(), [1001, 0]);
  done[1]?.(); // the one that was reset while it waited does not run
  assert.deepEqual(await seen(), [1001, 0]);
  for (let i = 0; i < 999; i++) call();
  assert.deepEqual(await seen(), [1002, 0]);
  call();
  assert.deepEqual(await seen(), [1002, 1]); // 1000 are open
});

test("unread messages cost what they take of the window", async () => {
  const p = new Pair();
  const call = p.open(bytes(1));
  const n = Math.floor((256 << 10) / messageCost);
  p.step({ stream: 1, header: [] });
  const frames = Array.from({ length: n }, () => (e: Encoder) => e.stream({ stream: 1, begins: true, data: bytes(0) }));
  for (const f of frames) f(p.encoder);
  const chunk = p.encoder.take();
  const arrays = new Set<Uint8Array>();
  const done = await work(async () => {
    p.session.receive(chunk);
    for (let i = 0; i < n; i++) arrays.add((await call.receive()) as Uint8Array);
  });
  assert.equal(p.ended, undefined);
  assert.ok(done < 5 * chunk.length, `${done} operations for ${chunk.length} bytes`);
  assert.equal(arrays.size, 1); // an array takes 20 times the credit of an empty message
});

test("room for a message is made as its bytes arrive", async () => {
  const p = new Pair({}, { accept: () => new Promise(() => {}) });
  let chunks = 0;
  const made = await work(() => {
    for (let id = 2; id <= 1000; id += 2) {
      p.encoder.stream({ stream: id, head, begins: true, more: true, size: 1 << 30, data: bytes(1) });
      p.session.receive(p.encoder.take());
      chunks++;
    }
  });
  assert.deepEqual([chunks, p.session.busy, p.ended], [500, true, undefined]);
  assert.ok(made < chunks * 4096, `${made} bytes for ${chunks} messages of which a byte has come`);
});
