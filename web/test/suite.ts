// What the package promises, against the server of testserver. It runs in Node and in browsers.

import { create } from "@bufbuild/protobuf";
import {
  type CallOptions,
  type Client,
  Code,
  ConnectError,
  createClient,
  encodeBinaryHeader,
  type Interceptor,
} from "@connectrpc/connect";
import { createNearcallTransport, type NearcallTransport, type NearcallTransportOptions } from "../src/index.ts";
import { serve } from "../src/serve.ts";
import { type Note, NoteSchema, Probe } from "./gen/probepb/probe_pb.ts";
import { mixed } from "./mixed.ts";

/** A test by name. It gets the URL of a server, and of one with MaxConcurrentStreams 10. */
export type Tests = Record<string, (at: Site) => Promise<void>>;

export class Site {
  readonly url: string;
  readonly limitedUrl: string;
  readonly #transports: NearcallTransport[] = [];

  constructor(url: string, limitedUrl: string) {
    this.url = url;
    this.limitedUrl = limitedUrl;
  }

  transport(options: Partial<NearcallTransportOptions> = {}): NearcallTransport {
    const t = createNearcallTransport({ url: this.url, ...options });
    this.#transports.push(t);
    return t;
  }

  client(options: Partial<NearcallTransportOptions> = {}): Client<typeof Probe> {
    return createClient(Probe, this.transport(options));
  }

  close(): void {
    for (const t of this.#transports) t.close();
  }
}

export function equal(got: unknown, want: unknown): void {
  const show = (v: unknown) =>
    JSON.stringify(v, (_, x) => (typeof x === "bigint" ? `${x}n` : x instanceof Uint8Array ? [...x] : x));
  if (show(got) !== show(want)) throw new Error(`got ${show(got)}, want ${show(want)}`);
}

export function check(ok: boolean, what: string): void {
  if (!ok) throw new Error(what);
}

export async function fails(p: Promise<unknown>, code: Code, text = ""): Promise<ConnectError> {
  try {
    await p;
  } catch (e) {
    if (!(e instanceof ConnectError)) throw e;
    if (e.code !== code || !e.message.includes(text))
      throw new Error(`failed with ${e.message}, want ${Code[code]} ${text}`);
    return e;
  }
  throw new Error(`did not fail, want ${Code[code]}`);
}

export const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

/** Waits until is returns true. */
export async function until(what: string, is: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = performance.now() + 10_000; !(await is()); await sleep(5)) {
    if (performance.now() > end) throw new Error(`it does not come true that ${what}`);
  }
}

async function collect<T>(messages: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const m of messages) all.push(m);
  return all;
}

/** Messages that are pushed one by one. */
class Pushed<T> implements AsyncIterable<T> {
  #ready: T[] = [];
  #closed = false;
  #wake = () => {};

  push(m: T): void {
    this.#ready.push(m);
    this.#wake();
  }

  close(): void {
    this.#closed = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    for (;;) {
      while (this.#ready.length > 0) yield this.#ready.shift() as T;
      if (this.#closed) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}

async function counts(client: Client<typeof Probe>): Promise<{ running: number; cancelled: number; sent: number }> {
  return JSON.parse((await client.echo({ text: "!counts" })).text);
}

/** Waits until no handler of earlier tests runs. */
async function quiet(client: Client<typeof Probe>): Promise<{ cancelled: number }> {
  await until("no handler runs", async () => (await counts(client)).running === 0);
  return counts(client);
}

const megabytes = (n: number) => Uint8Array.from({ length: n << 20 }, (_, i) => i * 7);

export const tests: Tests = {
  async "unary calls"(at) {
    const client = at.client();
    const reply = await client.echo({ text: "häi", n: 5n, data: new Uint8Array([1, 2]) });
    equal([reply.text, reply.n, reply.data], ["häi", 5n, new Uint8Array([1, 2])]);
    equal((await client.echo({})).text, "");
  },

  async "server streams"(at) {
    const notes = await collect(at.client().list({ count: 300, size: 1000 }));
    equal(
      notes.map((n) => n.n),
      Array.from({ length: 300 }, (_, i) => BigInt(i)),
    );
    equal(await collect(at.client().list({})), []);
  },

  async "client streams"(at) {
    const client = at.client();
    const send = async function* (n: number) {
      for (let i = 0; i < n; i++) yield { data: new Uint8Array(1000) };
    };
    const total = await client.count(send(300));
    equal([total.count, total.bytes], [300n, 300_000n]);
    equal((await client.count(send(0))).count, 0n);
  },

  async "bidi streams, turn by turn"(at) {
    const input = new Pushed<Partial<Note>>();
    const replies = at
      .client()
      .chat(input as AsyncIterable<Note>)
      [Symbol.asyncIterator]();
    for (let i = 0; i < 100; i++) {
      input.push({ n: BigInt(i) });
      const r = await replies.next();
      equal(r.value.n, BigInt(i));
    }
    input.close();
    equal((await replies.next()).done, true);
  },

  async "a call that the server ends before the client has sent all"(at) {
    const endless = async function* () {
      yield { text: "!enough" };
      for (;;) yield { data: new Uint8Array(100_000) };
    };
    equal((await at.client().count(endless())).count, 1n);
  },

  async "metadata goes both ways"(at) {
    const client = at.client();
    const headers = {
      "x-one": "1",
      "x-latin": "müde",
      "x-data-bin": encodeBinaryHeader(new Uint8Array([0, 255, 7])),
      te: "trailers",
    };
    const seen = JSON.parse((await client.echo({ text: "!metadata" }, { headers })).text);
    equal([seen["x-one"], seen["user-agent"]?.[0].startsWith("nearcall-web/"), seen.te], [["1"], true, undefined]);
    check(seen[":authority"][0] === new URL(at.url).host, `the authority is ${seen[":authority"]}`);
    let header = new Headers();
    let trailer = new Headers();
    await client.echo({ text: "!header" }, { onHeader: (h) => (header = h), onTrailer: (t) => (trailer = t) });
    for (const [h, which] of [
      [header, "header"],
      [trailer, "trailer"],
    ] as const) {
      equal(
        [h.get("which"), h.get("x-text"), h.get("x-list"), h.get("x-data-bin")],
        [which, "text", "a, b", "AP8, AQ"],
      );
    }
    await collect(client.list({ count: 1 }, { onHeader: (h) => (header = h), onTrailer: (t) => (trailer = t) }));
    equal([header.get("which"), trailer.get("which")], ["header", "trailer"]);
  },

  async "large metadata"(at) {
    const client = at.client();
    for (const n of [100, 70_000, 200_000]) {
      const seen = JSON.parse(
        (await client.echo({ text: "!metadata" }, { headers: { big: "x".repeat(n), [`fresh-${n}`]: "1" } })).text,
      );
      equal([seen.big[0].length, seen[`fresh-${n}`]], [n, ["1"]]);
    }
    await fails(client.echo({}, { headers: { big: "x".repeat(17 << 20) } }), Code.Internal, "more than the");
    await client.echo({});
  },

  async "more names than are remembered"(at) {
    const client = at.client();
    for (let i = 0; i < 2500; i += 100) {
      const headers = Object.fromEntries(Array.from({ length: 100 }, (_, j) => [`key-${i + j}`, "1"]));
      await client.echo({}, { headers });
    }
    const seen = JSON.parse(
      (await client.echo({ text: "!metadata" }, { headers: { "key-1": "a", "key-2450": "b" } })).text,
    );
    equal([seen["key-1"], seen["key-2450"]], [["a"], ["b"]]);
  },

  async "a header that cannot be metadata"(at) {
    await fails(at.client().echo({}, { headers: { "a~b": "1" } }), Code.Internal, "a~b");
    await fails(at.client().echo({}, { headers: { "x-bin": "?" } }), Code.Internal, "base64");
  },

  async "errors have code, text, details and metadata"(at) {
    const e = await fails(at.client().echo({ text: "!details" }), Code.FailedPrecondition, "nein, müde");
    equal(e.rawMessage, "nein, müde");
    equal(
      e.findDetails(NoteSchema).map((d) => [d.text, d.n]),
      [["detail", 7n]],
    );
    equal(e.details.length, 2);
    equal([e.metadata.get("which"), e.metadata.get("x-data-bin")], ["header, trailer", "AP8, AQ, AP8, AQ"]);
    await fails(at.client().echo({ text: "!fail" }), Code.NotFound, "not here");
    const input = async function* () {
      yield { text: "!fail" };
    };
    await fails(collect(at.client().chat(input())), Code.Aborted, "enough");
  },

  async "an unknown method"(at) {
    const other = { ...Probe.method.echo, name: "Nothing" } as typeof Probe.method.echo;
    await fails(at.transport().unary(other, undefined, undefined, undefined, create(NoteSchema)), Code.Unimplemented);
  },

  async deadlines(at) {
    const client = at.client({ defaultTimeoutMs: 5000 });
    const left = async (timeoutMs?: number) =>
      Number((await client.echo({ text: "!left" }, timeoutMs === undefined ? {} : { timeoutMs })).n);
    const own = await left();
    check(own > 3000 && own <= 5000, `${own} ms are left of 5000`);
    equal(await left(0), -1);
    await fails(client.echo({ text: "!hang" }, { timeoutMs: 50 }), Code.DeadlineExceeded);
    await fails(collect(client.list({ count: 2, hang: true }, { timeoutMs: 50 })), Code.DeadlineExceeded);
    await quiet(client);
  },

  async "calls are cancelled before, during and after"(at) {
    const client = at.client();
    const before = await quiet(client);
    await fails(client.echo({ text: "!hang" }, { signal: AbortSignal.abort() }), Code.Canceled);
    const during = new AbortController();
    const call = fails(client.echo({ text: "!hang" }, { signal: during.signal }), Code.Canceled);
    await until("the handler runs", async () => (await counts(client)).running === 1);
    during.abort();
    await call;
    const stream = new AbortController();
    const read = async () => {
      for await (const n of client.list({ count: 3, hang: true }, { signal: stream.signal }))
        if (n.n === 2n) stream.abort();
    };
    await fails(read(), Code.Canceled);
    const after = new AbortController();
    await client.echo({}, { signal: after.signal });
    after.abort();
    await until("the handlers have ended", async () => (await counts(client)).cancelled === before.cancelled + 2);
  },

  async "a stream whose input fails"(at) {
    const client = at.client();
    const input = async function* () {
      yield {};
      throw new Error("mine");
    };
    await fails(client.count(input()), Code.Canceled, "mine");
    await quiet(client);
  },

  async "10 MB in both directions"(at) {
    const client = at.client();
    const data = megabytes(3);
    const reply = await client.echo({ data });
    check(reply.data.length === data.length && reply.data.every((x, i) => x === data[i]), "the bytes differ");
    const input = async function* () {
      for (let i = 0; i < 4; i++) yield { data };
    };
    equal(
      (await collect(client.chat(input()))).map((n) => n.data.length),
      [data.length, data.length, data.length, data.length],
    );
  },

  async "messages over the limit"(at) {
    const client = at.client({ readMaxBytes: 1000 });
    await fails(client.echo({ data: new Uint8Array(5000) }), Code.ResourceExhausted, "limit of 1000");
    await fails(collect(client.list({ count: 1, size: 500_000 })), Code.ResourceExhausted, "limit of 1000");
    equal((await client.echo({ data: new Uint8Array(500) })).data.length, 500);
    await fails(client.echo({ data: new Uint8Array(5 << 20) }), Code.ResourceExhausted, "larger than max");
  },

  async "small calls are not held up by large ones"(at) {
    const client = at.client();
    let busy = true;
    const large = Promise.all([1, 2, 3].map(() => client.echo({ data: megabytes(3) }))).then(() => {
      busy = false;
    });
    let small = 0;
    while (busy) {
      await client.echo({ n: 1n });
      small++;
    }
    await large;
    check(small > 1, `${small} small calls`);
  },

  async "1,000 unary and 1,000 bidi calls on one socket"(at) {
    const transport = at.transport();
    const states: string[] = [];
    transport.onStateChange((s) => states.push(s));
    const client = createClient(Probe, transport);
    const numbers = Array.from({ length: 1000 }, (_, i) => BigInt(i));
    equal(
      (await Promise.all(numbers.map((n) => client.echo({ n })))).map((r) => r.n),
      numbers,
    );
    const talk = async (n: bigint) => {
      const input = async function* () {
        yield { n };
        yield { n: n + 1n };
      };
      return (await collect(client.chat(input()))).map((r) => r.n);
    };
    equal(
      await Promise.all(numbers.map(talk)),
      numbers.map((n) => [n, n + 1n]),
    );
    equal(states, ["connecting", "ready"]);
  },

  async "messages can be asked for before others have come"(at) {
    const transport = at.transport();
    const request = async function* () {
      yield { count: 3, hang: true };
    };
    const stop = new AbortController();
    const { message } = await transport.stream(Probe.method.list, stop.signal, undefined, undefined, request());
    const notes = message[Symbol.asyncIterator]();
    const three = await Promise.all([notes.next(), notes.next(), notes.next()]);
    equal(
      three.map((r) => r.value.n),
      [0n, 1n, 2n],
    );
    const last = [notes.next(), notes.next()];
    stop.abort();
    const [failed, ended] = await Promise.allSettled(last);
    equal([failed?.status, ended], ["rejected", { status: "fulfilled", value: { done: true } }]);
  },

  async "a server with MaxConcurrentStreams 10"(at) {
    const client = at.client({ url: at.limitedUrl });
    const numbers = Array.from({ length: 500 }, (_, i) => BigInt(i));
    equal(
      (await Promise.all(numbers.map((n) => client.echo({ n })))).map((r) => r.n),
      numbers,
    );
    const hanging = new AbortController();
    const ten = numbers
      .slice(0, 10)
      .map(() => fails(client.echo({ text: "!hang" }, { signal: hanging.signal }), Code.Canceled));
    const next = client.echo({ n: 7n });
    await fails(client.echo({}, { timeoutMs: 50 }), Code.DeadlineExceeded);
    hanging.abort();
    await Promise.all(ten);
    equal((await next).n, 7n);
  },

  async "a server whose messages are not received stops"(at) {
    const client = at.client();
    const abort = new AbortController();
    const notes = client.list({ count: 100_000, size: 10_000 }, { signal: abort.signal })[Symbol.asyncIterator]();
    await notes.next();
    let sent = 0;
    await until("the server waits", async () => {
      const before = sent;
      sent = (await counts(client)).sent;
      await sleep(50);
      return sent === before;
    });
    check(sent < 100, `it has sent ${sent} notes of 10 kB`);
    for (let i = 1; i < 1000; i++) await notes.next();
    abort.abort();
  },

  async "a client whose messages are not received stops"(at) {
    let made = 0;
    const input = async function* () {
      yield { text: "!slow" };
      for (; made < 1000; made++) yield { data: new Uint8Array(10_000) };
    };
    const total = at.client().count(input());
    await sleep(250);
    check(made < 60, `${made} notes of 10 kB were made while the server slept`);
    equal((await total).count, 1001n);
  },

  "streams of messages of mixed sizes": (at) => mixed((WebSocket) => at.transport({ WebSocket })),

  async "interceptors see every call"(at) {
    const seen: string[] = [];
    const add: Interceptor = (next) => async (req) => {
      req.header.set("x-added", "yes");
      seen.push(`${req.method.name} ${new URL(req.url).pathname} ${req.stream}`);
      return next(req);
    };
    const client = at.client({ interceptors: [add] });
    equal(JSON.parse((await client.echo({ text: "!metadata" })).text)["x-added"], ["yes"]);
    await collect(client.list({ count: 1 }));
    const path = new URL(at.url).pathname;
    equal(seen, [
      `Echo ${path}/nearcall.web.probe.v1.Probe/Echo false`,
      `List ${path}/nearcall.web.probe.v1.Probe/List true`,
    ]);
  },

  async "calls are alike with and without a signal, a timeout and interceptors"(at) {
    const ways: [Client<typeof Probe>, CallOptions][] = [
      [at.client(), {}],
      [at.client(), { signal: new AbortController().signal }],
      [at.client(), { timeoutMs: 60_000 }],
      [at.client({ interceptors: [(next) => next] }), {}],
    ];
    for (const [client, options] of ways) {
      let header: Headers | undefined;
      let trailer: Headers | undefined;
      const note = await client.echo(
        { text: "!header" },
        {
          ...options,
          headers: { "x-sent": "yes" },
          onHeader: (h) => {
            header = h;
          },
          onTrailer: (t) => {
            trailer = t;
          },
        },
      );
      equal([note.$typeName, header?.get("which"), trailer?.get("which")], [NoteSchema.typeName, "header", "trailer"]);
      await fails(client.echo({ text: "!fail" }, options), Code.NotFound, "not here");
      await fails(client.echo({ n: 2n ** 70n }, options), Code.Unknown, "invalid int64");
      await fails(client.echo({}, { ...options, headers: { "x!": "" } }), Code.Internal, "cannot be sent");
      const sent = await client.echo({ text: "!metadata" }, { ...options, headers: { "x-sent": "yes" } });
      equal(JSON.parse(sent.text)["x-sent"], ["yes"]);
    }
  },

  async "nothing listens"(at) {
    const client = at.client({ url: "ws://127.0.0.1:1/" });
    let e = await fails(client.echo({}), Code.Unavailable, "cannot connect to ws://127.0.0.1:1/");
    for (let i = 0; i < 10 && !e.message.includes("the next attempt is due in"); i++) {
      e = await fails(client.echo({}), Code.Unavailable);
    }
    check(e.message.includes("the next attempt is due in"), e.message);
  },

  async "a closed transport"(at) {
    const transport = at.transport();
    const client = createClient(Probe, transport);
    await client.echo({});
    const open = fails(client.echo({ text: "!hang" }), Code.Canceled, "closed");
    transport.close();
    await open;
    await fails(client.echo({}), Code.Canceled, "closed");
    equal(transport.state, "closed");
  },

  async "calls of the server"(at) {
    const transport = at.transport();
    const client = createClient(Probe, transport);
    await fails(client.callBack({ method: "Echo", count: 1 }), Code.Unimplemented, "takes no calls");
    const stop = serve(transport, ({ service }) => {
      service(Probe, {
        echo: async (note, context) => {
          if (note.text === "!details")
            throw new ConnectError("the page says no", Code.FailedPrecondition, { "x-why": "because" }, [
              { desc: NoteSchema, value: { text: "d" } },
            ]);
          if (note.text === "!hang")
            await new Promise((_, reject) =>
              context.signal.addEventListener("abort", () => reject(context.signal.reason)),
            );
          return note;
        },
        async *list({ count, size }) {
          for (let i = 0; i < count; i++) yield { n: BigInt(i), data: new Uint8Array(size) };
        },
        async count(notes) {
          let count = 0n;
          for await (const _ of notes) count++;
          return { count };
        },
        async *chat(notes) {
          for await (const n of notes) yield n;
        },
      });
    });
    const back = async (method: string, count: number, size: number) => {
      const t = await client.callBack({ method, count, size });
      return [Number(t.count), Number(t.bytes), t.text];
    };
    equal(await back("Echo", 10, 100), [10, 1000, "from Go"]);
    equal(await back("List", 100, 100_000), [100, 10_000_000, ""]);
    equal((await back("Count", 100, 100_000))[0], 100);
    equal(await back("Chat", 50, 100), [50, 5000, "from Go"]);
    equal((await back("Echo", 1, 2 << 20))[1], 2 << 20);
    const e = await fails(client.callBack({ method: "Fail" }), Code.FailedPrecondition, "the page says no");
    equal(
      e.findDetails(NoteSchema).map((d) => d.text),
      ["d"],
    );
    await fails(client.callBack({ method: "Hang" }), Code.DeadlineExceeded);
    await Promise.all(Array.from({ length: 50 }, () => back("Echo", 20, 10)));
    stop();
  },

  async "handlers of the page are alike with and without interceptors"(at) {
    const transport = at.transport();
    const client = createClient(Probe, transport);
    const pass: Interceptor = (next) => next;
    for (const interceptors of [[], [pass]]) {
      const signals: AbortSignal[] = [];
      const stop = serve(
        transport,
        ({ service }) => {
          service(Probe, {
            echo(note, context) {
              signals.push(context.signal);
              if (signals.length > 3) throw new TypeError("the page's mistake");
              context.responseHeader.set("x-page", "header");
              context.responseTrailer.set("x-page", "trailer");
              const { method, service, url, protocolName, timeoutMs, requestMethod } = context;
              equal(
                [method.name, service.typeName, url, protocolName, timeoutMs(), requestMethod, { ...context }.url],
                ["Echo", Probe.typeName, `nearcall:/${Probe.typeName}/Echo`, "grpc", undefined, "POST", url],
              );
              return { text: `${note.text}, ${context.requestHeader.get("x-none")}, ${signals[0]?.aborted}` };
            },
          });
        },
        { interceptors },
      );
      equal((await client.callBack({ method: "Echo", count: 1 })).text, "from Go, null, false");
      equal((await client.callBack({ method: "Echo", count: 1 })).text, "from Go, null, true");
      equal((await client.callBack({ method: "Metadata" })).text, "header, trailer");
      await fails(client.callBack({ method: "Echo", count: 1 }), Code.Unknown, "the page's mistake");
      equal(
        signals.map((s) => s.aborted),
        [true, true, true, true],
      );
      stop();
    }
  },

  async "a message of the server over the limit"(at) {
    const transport = at.transport({ readMaxBytes: 1000 });
    const client = createClient(Probe, transport);
    const stop = serve(transport, ({ service }) => {
      service(Probe, { echo: (note) => note });
    });
    for (const size of [5000, 500_000])
      await fails(client.callBack({ method: "Echo", count: 1, size }), Code.ResourceExhausted, "limit of 1000");
    equal((await client.callBack({ method: "Echo", count: 1, size: 100 })).bytes, 100n);
    stop();
  },
};
