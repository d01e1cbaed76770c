// Streams of messages of unequal sizes, with fast and slow receivers.

import { type Client, createClient } from "@connectrpc/connect";
import type { NearcallTransport, WebSocketClass } from "../src/index.ts";
import { serve } from "../src/serve.ts";
import { Decoder, type Frame, Kind, messageCost, minWindow } from "../src/wire.ts";
import { type Note, Probe } from "./gen/probepb/probe_pb.ts";

const standstill = 10_000; // milliseconds in which nothing moves

// In turn: the caller sends all, and then the callee.
const kinds = ["up", "down", "both ways", "in turn"] as const;

/** Numbers from 0 to n - 1 that depend on the seed alone. */
function numbers(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * n);
  };
}

/** Sizes of messages; the server takes 4 MB. */
function sizes(random: (n: number) => number, max: number): number[] {
  const limit = [100, 10_000, 100_000, 1_000_000][random(4)] as number;
  const all: number[] = [];
  for (let left = Math.min(100 * limit, 5_000_000); left > 0; left -= limit / 2) all.push(random(limit));
  if (random(3) > 0) all[0] = 3_000_000 + random(max - 3_000_000); // the sender is granted more than the window
  return all;
}

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

/** Byte j of message i has the value i + j. */
function data(i: number, size: number): Uint8Array {
  const b = new Uint8Array(size);
  for (let j = 0; j < size; j++) b[j] = i + j;
  return b;
}

/** What each side may still send, by what has passed in a WebSocket. */
class Traffic {
  readonly #credit = { client: new Map<number, number>(), server: new Map<number, number>() };
  readonly #windows = { client: minWindow, server: minWindow }; // of new calls
  readonly #seen = new Map<number, string[]>(); // what has ended of calls

  add(from: "client" | "server", f: Frame): void {
    const to = from === "client" ? "server" : "client";
    const add = (side: "client" | "server", id: number, n: number) =>
      this.#credit[side].set(id, (this.#credit[side].get(id) ?? (id === 0 ? minWindow : this.#windows[side])) + n);
    if (f.kind === Kind.hello) {
      for (const id of this.#credit[to].keys()) if (id !== 0) add(to, id, f.hello.stream - minWindow);
      add(to, 0, f.hello.connection - minWindow);
      this.#windows[to] = f.hello.stream;
    } else if (f.kind === Kind.credit) add(to, f.stream, f.n);
    else if (f.kind === Kind.reset || (f.kind === Kind.stream && (f.end || f.halfClose)))
      this.#seen.set(f.stream, [...(this.#seen.get(f.stream) ?? []), `the ${from} has ended it`]);
    if (f.kind !== Kind.stream || !f.data) return;
    const cost = f.data.length + (f.begins ? messageCost : 0);
    add(from, 0, -cost);
    add(from, f.stream, -cost);
  }

  toString(): string {
    const { client, server } = this.#credit;
    const ids = [...new Set([...client.keys(), ...server.keys()])].sort((a, b) => a - b);
    const left = (m: Map<number, number>, id: number) => m.get(id) ?? "a window";
    return ids
      .map((id) =>
        [
          `${id === 0 ? "connection" : `call ${id}`}: the client may send ${left(client, id)}, the server ${left(server, id)}`,
          ...(this.#seen.get(id) ?? []),
        ].join(", "),
      )
      .join("\n");
  }

  /** A class of WebSockets whose traffic it is. */
  get WebSocket(): WebSocketClass {
    const add = this.add.bind(this);
    return class extends WebSocket {
      readonly #out = new Decoder(1 << 20, "client");

      constructor(url: string, protocols: string) {
        super(url, protocols);
        const decoder = new Decoder(1 << 20);
        this.addEventListener("message", (e) => decoder.push(new Uint8Array(e.data), (f) => add("server", f)));
      }

      override send(b: Uint8Array<ArrayBuffer>): void {
        this.#out.push(b.slice(), (f) => add("client", f));
        super.send(b);
      }
    } as unknown as WebSocketClass;
  }
}

/** One stream. Its state says what it waits for in the page. Up is from the page, in calls of the server too. */
class Mixture {
  readonly #kind: (typeof kinds)[number];
  readonly #back: boolean; // the server calls the page
  readonly #up: number[];
  readonly #down: number[];
  readonly #slow: [page: boolean, server: boolean];
  readonly #moved: () => void;
  #sends = "sends nothing yet";
  #receives = "receives nothing yet";

  constructor(kind: (typeof kinds)[number], back: boolean, random: (n: number) => number, moved: () => void) {
    this.#kind = kind;
    this.#back = back;
    this.#up = kind === "down" ? [] : sizes(random, 4_000_000);
    this.#down = kind === "up" ? [] : sizes(random, 5_000_000);
    this.#slow = [random(2) === 0, random(2) === 0];
    this.#moved = moved;
  }

  toString(): string {
    const slow = ["page", "server"].filter((_, i) => this.#slow[i]).map((s) => `, a slow ${s}`);
    const whose = this.#back ? "a call of the server" : "a call";
    return `${whose}, ${this.#kind}${slow.join("")}: it ${this.#sends}, and ${this.#receives}`;
  }

  /** Makes the call. The server calls the page with name, if it is to call. */
  async run(client: Client<typeof Probe>, name: string): Promise<void> {
    const inTurn = this.#kind === "in turn" && !this.#back;
    const plan = `mixed ${JSON.stringify({ name, up: this.#up, down: this.#down, inTurn, slow: this.#slow[1] })}`;
    if (this.#back) await client.callBack({ method: plan });
    else await this.#receive(client.chat(this.#input(plan)));
  }

  async *#input(plan: string) {
    yield { text: `!${plan}` };
    yield* this.#messages();
  }

  /** Answers a call of the server. */
  async *answer(notes: AsyncIterable<Note>) {
    const received = this.#receive(notes);
    received.catch(() => {}); // it is awaited later
    if (this.#kind === "in turn") await received;
    yield* this.#messages();
    await received;
  }

  async *#messages() {
    for (const [i, size] of this.#up.entries()) {
      this.#sends = `sends message ${i} of ${this.#up.length}, of ${size} bytes`;
      yield { data: data(i, size) };
      this.#moved();
    }
    this.#sends = "has sent all";
  }

  async #receive(notes: AsyncIterable<Note>): Promise<void> {
    let i = 0;
    const waits = () => {
      const size = this.#down[i];
      this.#receives = `waits for ${size === undefined ? "the end" : `message ${i} of ${this.#down.length}, of ${size} bytes`}`;
    };
    waits();
    for await (const note of notes) {
      const want = data(i, this.#down[i] as number);
      if (note.data.length !== want.length || note.data.some((b, j) => b !== want[j]))
        throw new Error(`message ${i} has ${note.data.length} bytes, or others, want ${want.length}`);
      this.#moved();
      i++;
      waits();
      if (this.#slow[0] && i % 8 === 0) await sleep(2);
    }
    if (i !== this.#down.length) throw new Error(`${i} messages have come, want ${this.#down.length}`);
    this.#receives = "has received all";
  }
}

/**
 * Makes streams of each kind, from the page and from the server, alone and some at a time. It fails when
 * nothing moves for ten seconds.
 */
export async function mixed(open: (WebSocket: WebSocketClass) => NearcallTransport): Promise<void> {
  const seed = Math.floor(Math.random() * 2 ** 32);
  console.log(`mixed streams: seed ${seed}`);
  const random = numbers(seed);
  const traffic = new Traffic();
  const transport = open(traffic.WebSocket);
  const client = createClient(Probe, transport);
  let moved = 0;
  let made = 0;
  const running = new Map<string, Mixture>();
  const stop = serve(transport, ({ service }) => {
    service(Probe, {
      async *chat(notes) {
        const all = notes[Symbol.asyncIterator]();
        const { value } = await all.next();
        yield* (running.get(value.text) as Mixture).answer({ [Symbol.asyncIterator]: () => all });
      },
    });
  });
  const run = async (kind: (typeof kinds)[number], back: boolean) => {
    const m = new Mixture(kind, back, random, () => moved++);
    const name = `${made++}`;
    running.set(name, m);
    await m.run(client, name).catch((e) => {
      throw new Error(`seed ${seed}, ${m}: ${e}`);
    });
    running.delete(name);
  };
  let timer: ReturnType<typeof setInterval> | undefined;
  const stands = new Promise<never>((_, reject) => {
    let last = -1;
    timer = setInterval(() => {
      if (moved === last) {
        const streams = [...running.values()].join("\n");
        reject(new Error(`seed ${seed}: nothing moves, after ${moved} messages\n${streams}\n${traffic}`));
      }
      last = moved;
    }, standstill);
  });
  const all = async () => {
    const both = [false, true].flatMap((back) => kinds.map((kind) => [kind, back] as const));
    for (const [kind, back] of both) await run(kind, back);
    await Promise.all(both.map(([kind, back]) => run(kind, back)));
  };
  try {
    await Promise.race([all(), stands]);
  } finally {
    clearInterval(timer);
    stop();
  }
}
