// What the benchmark runs in a page: calls over one stack for some time.

import { createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { newWebSocketRpcSession } from "capnweb";
import { createNearcallTransport } from "../src/index.ts";
import { serve } from "../src/serve.ts";
import { Probe } from "../test/gen/probepb/probe_pb.ts";
import type { Item, Service } from "./capnweb.ts";

/** A way to call a server. A method that is missing is one that it cannot make. */
interface Stack {
  echo(item: Item): Promise<Item>;

  /** Receives messages with texts of a size on one stream, and returns how many. */
  list(count: number, size: number): Promise<number>;

  /** Opens a stream both ways. */
  chat?(): Chat;

  /** Makes the server call the page, and returns how many replies it got. */
  callBack?(count: number): Promise<number>;
}

interface Chat {
  trip(item: Item): Promise<Item>;
  end(): Promise<void>;
}

export type StackName = "nearcall" | "http1" | "capnweb" | "nearcallTLS" | "http2";
export type RowName = "unary" | "unary64" | "list" | "chat" | "callBack" | "large";

/** Messages to send, one after another. */
class Outbox<T> implements AsyncIterableIterator<T> {
  readonly #messages: (T | undefined)[] = [];
  #waiting: ((r: IteratorResult<T>) => void) | undefined;

  /** Sends m; the end if it is undefined. */
  send(m?: T): void {
    if (!this.#waiting) this.#messages.push(m);
    else this.#waiting(result(m));
    this.#waiting = undefined;
  }

  next(): Promise<IteratorResult<T>> {
    if (this.#messages.length > 0) return Promise.resolve(result(this.#messages.shift()));
    return new Promise((resolve) => {
      this.#waiting = resolve;
    });
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}

function result<T>(m: T | undefined): IteratorResult<T> {
  return m === undefined ? { done: true, value: undefined } : { done: false, value: m };
}

/** The calls of a client of connect-es. */
function probe(transport: Transport): Stack {
  const client = createClient(Probe, transport);
  const toItem = (m: { text: string; n: bigint; data: Uint8Array }) => ({ text: m.text, n: Number(m.n), data: m.data });
  const toNote = (i: Item) => ({ text: i.text, n: BigInt(i.n), data: i.data as Uint8Array });
  return {
    async echo(item) {
      return toItem(await client.echo(toNote(item)));
    },
    async list(count, size) {
      let n = 0;
      for await (const m of client.list({ count, size })) if (Number(m.n) === n && m.text.length === size) n++;
      return n;
    },
    chat() {
      const outbox = new Outbox<ReturnType<typeof toNote>>();
      const replies = client.chat(outbox)[Symbol.asyncIterator]();
      return {
        async trip(item) {
          outbox.send(toNote(item));
          return toItem((await replies.next()).value);
        },
        async end() {
          outbox.send();
          if (!(await replies.next()).done) throw new Error("a message is left over");
        },
      };
    },
    async callBack(count) {
      return Number((await client.callBack({ method: "Echo", count })).count);
    },
  };
}

function nearcall(url: string): Stack {
  const transport = createNearcallTransport({ url });
  serve(transport, (router) => router.service(Probe, { echo: (note) => note }));
  return probe(transport);
}

/** connect-web has no streams from the page, and no calls to it. */
function connectWeb(baseUrl: string): Stack {
  const { echo, list } = probe(createConnectTransport({ baseUrl, useBinaryFormat: true }));
  return { echo, list };
}

function capnweb(url: string): Stack {
  const api = newWebSocketRpcSession<Service>(url);
  return {
    async echo(item) {
      return await api.echo(item);
    },
    async list(count, size) {
      const reader = (await api.list(count, size)).getReader();
      let n = 0;
      for (let r = await reader.read(); !r.done; r = await reader.read())
        if (r.value.n === n && r.value.text.length === size) n++;
      return n;
    },
    chat() {
      let to!: ReadableStreamDefaultController<Item>;
      const items = new ReadableStream<Item>({
        start(c) {
          to = c;
        },
      });
      const replies = Promise.resolve(api.chat(items)).then((r) => r.getReader());
      return {
        async trip(item) {
          to.enqueue(item);
          return (await (await replies).read()).value as Item;
        },
        async end() {
          to.close();
          if (!(await (await replies).read()).done) throw new Error("a message is left over");
        },
      };
    },
    async callBack(count) {
      return await api.callBack((item: Item) => Promise.resolve(item), count);
    },
  };
}

const text = "a text of thirty-two characters.";
const data = new Uint8Array(1 << 20).map((_, i) => (Math.imul(i, 2654435761) >>> 13) & 0xff);
const listed = 1000; // messages of a stream
const called = 100; // calls back for a call

/** Repeats one until the time is over. It returns how many calls, messages or trips there were. */
type Row = (stack: Stack, goesOn: () => boolean) => Promise<number>;

async function small(stack: Pick<Stack, "echo">, goesOn: () => boolean): Promise<number> {
  let n = 0;
  do {
    const reply = await stack.echo({ text, n });
    if (reply.text !== text || reply.n !== n) throw new Error(`a reply to ${n} is wrong: ${JSON.stringify(reply)}`);
    n++;
  } while (goesOn());
  return n;
}

const rows: Record<RowName, Row> = {
  unary: small,
  async unary64(stack, goesOn) {
    const counts = await Promise.all(Array.from({ length: 64 }, () => small(stack, goesOn)));
    return counts.reduce((a, b) => a + b);
  },
  async list(stack, goesOn) {
    let n = 0;
    do {
      const got = await stack.list(listed, text.length);
      if (got !== listed) throw new Error(`${got} messages of ${listed} were right`);
      n += got;
    } while (goesOn());
    return n;
  },
  async chat(stack, goesOn) {
    const chat = (stack.chat as () => Chat)();
    const n = await small({ echo: chat.trip }, goesOn);
    await chat.end();
    return n;
  },
  async callBack(stack, goesOn) {
    let n = 0;
    do {
      const got = await (stack.callBack as (count: number) => Promise<number>)(called);
      if (got !== called) throw new Error(`${got} calls of ${called} were answered`);
      n += got;
    } while (goesOn());
    return n;
  },
  async large(stack, goesOn) {
    let n = 0;
    do {
      const reply = (await stack.echo({ text: "", n, data })).data as Uint8Array;
      if (reply.length !== data.length || !equal(reply, n)) throw new Error("a large reply is wrong");
      n++;
    } while (goesOn());
    return n;
  },
};

/** Compares every 1,009th byte, from another one on each time. */
function equal(reply: Uint8Array, from: number): boolean {
  for (let i = from % 1009; i < data.length; i += 1009) if (reply[i] !== data[i]) return false;
  return true;
}

const stacks = new Map<StackName, Stack>();

const page = {
  /** Adds a stack to the page. */
  add(name: StackName, url: string): void {
    const make = { nearcall, nearcallTLS: nearcall, http1: connectWeb, http2: connectWeb, capnweb };
    stacks.set(name, make[name](url));
  },

  /** Measures a row for some milliseconds: how many a second. */
  async measure(name: StackName, row: RowName, ms: number): Promise<{ count: number; ms: number }> {
    (globalThis as { gc?: () => void }).gc?.();
    const stack = stacks.get(name) as Stack;
    const begun = performance.now();
    const count = await rows[row](stack, () => performance.now() < begun + ms);
    return { count, ms: performance.now() - begun };
  },

  /** The protocol of the last requests over HTTP, such as "h2". */
  protocols(): string[] {
    return performance.getEntriesByType("resource").map((e) => (e as PerformanceResourceTiming).nextHopProtocol);
  },
};

export type BenchPage = typeof page;

Object.assign(globalThis, { bench: page });
