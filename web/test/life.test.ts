// Connections that fail, and servers that come and go.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Code, createClient, type ServiceImpl } from "@connectrpc/connect";
import { createNearcallTransport, type NearcallTransportOptions, type WebSocketClass } from "../src/index.ts";
import { serve } from "../src/serve.ts";
import { Decoder, Encoder, Kind, Reset, unknownPeer } from "../src/wire.ts";
import { Probe } from "./gen/probepb/probe_pb.ts";
import { start } from "./server.ts";
import { fails, sleep, until } from "./suite.ts";

/** A class of WebSockets that go where it says. */
function directed(to: () => string): WebSocketClass {
  return class extends WebSocket {
    constructor(_url: string, protocols: string) {
      super(to(), protocols);
    }
  } as unknown as WebSocketClass;
}

function open(options: Partial<NearcallTransportOptions>) {
  const transport = createNearcallTransport({ url: "ws://server.example/calls", ...options });
  const states: string[] = [];
  transport.onStateChange((s) => states.push(s));
  return { transport, states, client: createClient(Probe, transport) };
}

describe("servers", () => {
  test("a server restarts under calls", async () => {
    let server = await start();
    const { transport, states, client } = open({ WebSocket: directed(() => server.url) });
    const hanging = fails(client.echo({ text: "!hang" }), Code.Unavailable);
    const stream = client.chat(
      (async function* () {
        yield {};
        await new Promise(() => {});
      })(),
    );
    const messages = stream[Symbol.asyncIterator]();
    await messages.next();
    await sleep(1000); // so that it does not count as a server that fails at once
    await server.stop();
    await hanging;
    await fails(messages.next(), Code.Unavailable);
    server = await start();
    await client.echo({});
    assert.deepEqual(states, ["connecting", "ready", "idle", "connecting", "ready"]);
    transport.close();
    await server.stop();
  });

  test("a server that is stopped gracefully lets calls end, and the next ones go elsewhere", async () => {
    const first = await start();
    const second = await start();
    let url = first.url;
    const { transport, states, client } = open({ WebSocket: directed(() => url) });
    let release = () => {};
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    const messages = client
      .chat(
        (async function* () {
          yield { n: 1n };
          await released;
          yield { n: 2n };
        })(),
      )
      [Symbol.asyncIterator]();
    await messages.next();
    url = second.url;
    first.drain();
    await until("the server drains", () => states.includes("idle"));
    assert.equal((await client.echo({ n: 3n })).n, 3n);
    release();
    assert.equal((await messages.next()).value?.n, 2n);
    assert.equal((await messages.next()).done, true);
    transport.close();
    await Promise.all([first.stop(), second.stop()]);
  });

  test("no call of many is lost over graceful restarts", async () => {
    let server = await start();
    const { transport, client } = open({ WebSocket: directed(() => server.url) });
    let done = false;
    let calls = 0;
    const callers = Array.from({ length: 8 }, async () => {
      for (; !done; calls++) await client.echo({ n: 1n });
    });
    for (let i = 0; i < 3; i++) {
      await sleep(2500); // so that it does not count as a server that fails at once
      const old = server;
      server = await start();
      old.drain();
    }
    done = true;
    await Promise.all(callers);
    assert.ok(calls > 100);
    transport.close();
    await server.stop();
  });

  test("a page that serves connects again by itself", async () => {
    let server = await start();
    // Node's WebSocket can be silent for ever if the server dies while it connects.
    const { transport, states } = open({ WebSocket: directed(() => server.url), connectTimeoutMs: 1000 });
    const stop = serve(transport, ({ service }) => service(Probe, { echo: (n) => n }));
    await until("it is connected", () => transport.state === "ready");
    await sleep(1000);
    await server.stop();
    server = await start();
    await until(
      "it is connected again",
      () => states.filter((s) => s === "ready").length >= 2 && transport.state === "ready",
    );
    const { count } = await createClient(Probe, transport).callBack({ method: "Echo", count: 3 });
    assert.equal(count, 3n);
    stop();
    transport.close();
    await server.stop();
  });
});

/** A WebSocket whose other side the test plays. */
class Played {
  static last: Played | undefined;
  static made = 0;
  readyState = 0;
  binaryType = "";
  onopen: (() => void) | null = null;
  onmessage: ((e: { data: unknown }) => void) | null = null;
  onclose: ((e: { code: number; reason: string }) => void) | null = null;
  onerror: (() => void) | null = null;
  readonly sent: Uint8Array[] = [];
  closedWith: number | undefined;

  constructor() {
    Played.last = this;
    Played.made++;
  }
  open(): void {
    this.readyState = 1;
    this.onopen?.();
  }
  greet(ping = 0): void {
    const e = new Encoder();
    e.line();
    e.hello({ ...unknownPeer, ping, idlePing: ping });
    this.message(e.take().buffer);
  }
  message(data: unknown): void {
    this.onmessage?.({ data });
  }
  send(b: Uint8Array): void {
    this.sent.push(b);
  }
  close(code?: number): void {
    this.closedWith = code;
    this.readyState = 2;
  }
}

const played = Played as unknown as WebSocketClass;

describe("connections", () => {
  test("a refused WebSocket fails the call, and the next attempt waits", async () => {
    const { transport, client, states } = open({ WebSocket: played });
    const call = client.echo({});
    Played.last?.onclose?.({ code: 1006, reason: "" });
    await fails(call, Code.Unavailable, "close code 1006; a browser gives the reason in its console alone");
    const made = Played.made;
    await fails(client.echo({}), Code.Unavailable, "next attempt is due in");
    assert.equal(Played.made, made);
    assert.deepEqual(states, ["connecting", "failed"]);
    transport.close();
    assert.equal(transport.state, "closed");
  });

  test("a server that does not answer is given up", async () => {
    for (const opens of [false, true]) {
      const { transport, client } = open({ WebSocket: played, connectTimeoutMs: 30 });
      const call = client.echo({});
      if (opens) Played.last?.open();
      await fails(call, Code.Unavailable, "no answer in 30 ms");
      transport.close();
    }
  });

  test("a call that is given up while it connects", async () => {
    const { transport, client } = open({ WebSocket: played });
    await fails(client.echo({}, { timeoutMs: 20 }), Code.DeadlineExceeded);
    transport.close();
  });

  test("another protocol, and text, end the connection", async () => {
    for (const [data, text] of [
      [new TextEncoder().encode("HTTP/1.1 400 Bad Request\r\n").buffer, "does not speak nearcall's protocol"],
      ["hello", "a text message"],
    ] as const) {
      const { transport, client } = open({ WebSocket: played });
      const call = client.echo({});
      Played.last?.open();
      Played.last?.message(data);
      await fails(call, Code.Unavailable, text);
      assert.equal(Played.last?.closedWith, 1000);
      transport.close();
    }
  });

  test("a server that greets and leaves is not asked again at once", async () => {
    const { transport, client } = open({ WebSocket: played });
    const made = Played.made;
    const call = client.echo({ text: "!hang" });
    Played.last?.open();
    Played.last?.greet();
    await sleep(10);
    Played.last?.onclose?.({ code: 1001, reason: "" });
    await fails(call, Code.Unavailable, "was lost");
    await fails(client.echo({}), Code.Unavailable, "next attempt is due in");
    assert.equal(Played.made, made + 1);
    transport.close();
  });

  test("a server that says nothing is asked, and then given up", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const now = t.mock.method(performance, "now");
    let clock = 0;
    now.mock.mockImplementation(() => clock);
    const tick = async (ms: number) => {
      for (const end = clock + ms; clock < end; ) {
        clock += 100;
        t.mock.timers.tick(100);
        for (let i = 0; i < 20; i++) await Promise.resolve();
      }
    };
    const { transport, client } = open({ WebSocket: played, keepaliveMs: 1000 });
    const call = fails(client.echo({ text: "!hang" }), Code.Unavailable, "has not answered a PING");
    const socket = Played.last as Played;
    socket.open();
    socket.greet(2000); // the server wants at least that between PINGs
    await tick(500);
    const before = socket.sent.length;
    await tick(1000);
    assert.equal(socket.sent.length, before);
    await tick(1000);
    assert.equal(socket.sent.length, before + 1);
    const e = new Encoder();
    e.ping(0x06, new Uint8Array(8));
    socket.message(e.take().buffer);
    await tick(2300);
    assert.equal(socket.sent.length, before + 2);
    await tick(11_000);
    await call;
    transport.close();
  });

  test("a server that wants no PING for a month gets none, although timers are shorter", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    let clock = 0;
    t.mock.method(performance, "now").mock.mockImplementation(() => clock);
    const days = async (n: number) => {
      for (const hour = 3_600_000, end = clock + 24 * n * hour; clock < end; await Promise.resolve()) {
        clock += hour;
        t.mock.timers.tick(hour);
      }
    };
    const { transport, client } = open({ WebSocket: played, keepaliveMs: 1000 });
    const call = fails(client.echo({ text: "!hang" }), Code.Unavailable, "has not answered a PING");
    const socket = Played.last as Played;
    socket.open();
    socket.greet(30 * 86_400_000);
    await days(25); // more than 2³¹ ms
    const before = socket.sent.length;
    await days(7);
    assert.equal(socket.sent.length, before);
    await days(2); // a tenth more than a month
    assert.equal(socket.sent.length, before + 1);
    await call;
    transport.close();
  });

  type Impl = Partial<ServiceImpl<typeof Probe>>;
  for (const [name, method, implement] of [
    [
      "returns at its deadline",
      "echo",
      (ends) => ({
        echo: (note, context) =>
          new Promise((resolve) => context.signal.addEventListener("abort", () => resolve(note))).finally(ends),
      }),
    ],
    [
      "waits for a message at its deadline",
      "count",
      (ends) => ({
        count: async (notes) => {
          try {
            for await (const _ of notes);
          } finally {
            ends();
          }
          return {};
        },
      }),
    ],
    [
      "sends until its deadline",
      "list",
      (ends) => ({
        list: async function* () {
          try {
            for (;;) yield { text: "x".repeat(1 << 16) };
          } finally {
            ends();
          }
        },
      }),
    ],
  ] as [string, keyof typeof Probe.method, (ends: () => void) => Impl][])
    test(`a handler that ${name} has not met it, and ends although its caller is silent`, async () => {
      const { transport } = open({ WebSocket: played });
      const made = Played.made;
      let ended = false;
      const impl = implement(() => {
        ended = true;
      });
      const stop = serve(transport, ({ service }) => service(Probe, impl));
      try {
        await until("it connects", () => Played.made > made);
        const socket = Played.last as Played;
        socket.open();
        socket.greet();
        const profile = { authority: "", userAgent: "", subtype: "", encoding: "", accept: "" };
        const head = {
          method: `/${Probe.typeName}/${Probe.method[method].name}`,
          profile,
          timeout: 20_000,
          metadata: [],
        };
        const e = new Encoder();
        const halfClose = method !== "count";
        e.stream({ stream: 2, head, begins: halfClose, halfClose, data: new Uint8Array(0) });
        socket.message(e.take().buffer);
        const codes: number[] = [];
        const decoder = new Decoder(1 << 20, "client");
        await until("the call ends", () => {
          for (const b of socket.sent.splice(0))
            decoder.push(b, (f) => {
              if (f.kind === Kind.stream) assert.equal(f.end, undefined);
              if (f.kind === Kind.reset) codes.push(f.code);
            });
          return codes.length > 0;
        });
        assert.deepEqual(codes, [Reset.deadline]);
        await until("the handler ends", () => ended);
      } finally {
        stop();
        transport.close();
      }
    });

  test("a page says in gRPC's words that it has no such method", async () => {
    const { transport } = open({ WebSocket: played });
    const made = Played.made;
    const stop = serve(transport, ({ service }) => {
      service(Probe, {});
    });
    try {
      await until("it connects", () => Played.made > made);
      const socket = Played.last as Played;
      socket.open();
      socket.greet();
      const profile = { authority: "", userAgent: "", subtype: "", encoding: "", accept: "" };
      const texts: string[] = [];
      const decoder = new Decoder(1 << 20, "client");
      const e = new Encoder();
      for (const [i, method] of ["/a.B/C", `/${Probe.typeName}/C`, "/C", "C", `/${"s".repeat(300)}/C`].entries()) {
        e.stream({ stream: 2 * i + 2, head: { method, profile, timeout: 0, metadata: [] }, halfClose: true });
        socket.message(e.take().buffer);
      }
      await until("the calls end", () => {
        for (const b of socket.sent.splice(0))
          decoder.push(b, (f) => {
            if (f.kind === Kind.stream && f.end?.code === Code.Unimplemented) texts.push(f.end.message);
          });
        return texts.length === 5;
      });
      assert.deepEqual(texts, [
        "unknown service a.B",
        `unknown method C for service ${Probe.typeName}`,
        'malformed method name: "/C"',
        'malformed method name: "C"',
        `unknown service ${"s".repeat(256)}...`,
      ]);
    } finally {
      stop();
      transport.close();
    }
  });

  test("a stream whose loop was left ends when its messages are garbage", async () => {
    setFlagsFromString("--expose-gc");
    const collect: () => void = runInNewContext("gc");
    const server = await start();
    const { transport, client } = open({ url: server.url });
    const counts = async () => JSON.parse((await client.echo({ text: "!counts" })).text);
    await (async () => {
      for await (const _ of client.list({ count: 3, hang: true })) break;
    })();
    assert.equal((await counts()).cancelled, 0);
    await until("the handler is cancelled", async () => {
      collect();
      return (await counts()).cancelled === 1;
    });
    transport.close();
    await server.stop();
  });

  test("an aborted call leaves nothing behind", async () => {
    let unhandled = 0;
    const count = () => unhandled++;
    process.on("unhandledRejection", count);
    const { transport, client } = open({ WebSocket: played });
    const made = Played.made;
    await fails(client.echo({}, { signal: AbortSignal.abort() }), Code.Canceled);
    assert.equal(Played.made, made);
    transport.close();
    await sleep(10);
    process.off("unhandledRejection", count);
    assert.equal(unhandled, 0);
  });

  test("a class of WebSockets that throws", async () => {
    const broken = class {
      constructor() {
        throw new Error("not here");
      }
    } as unknown as WebSocketClass;
    const { transport, client } = open({ WebSocket: broken });
    const stop = serve(transport, () => {});
    await until("it has failed", () => transport.state === "failed");
    stop();
    stop();
    transport.close();
    stop();
    assert.throws(() => serve(transport, () => {}), /was closed/);
    await fails(client.echo({}), Code.Canceled);
  });

  test("timeouts that no timer can have", async () => {
    const server = await start();
    for (const timeoutMs of [Number.POSITIVE_INFINITY, Number.MAX_SAFE_INTEGER, Number.NaN]) {
      const { transport, client } = open({ url: server.url, defaultTimeoutMs: timeoutMs, keepaliveMs: timeoutMs });
      assert.equal((await client.echo({ text: "!left" })).n, -1n);
      assert.equal((await client.echo({ text: "!left" }, { timeoutMs })).n, -1n);
      transport.close();
    }
    await server.stop();
  });

  test("an invalid URL is named", () => {
    assert.throws(() => createNearcallTransport({ url: "not a url" }), /Invalid URL/);
  });
});
