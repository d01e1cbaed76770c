// The frames of nearcall's protocol and their bytes: docs/protocol.md of nearcall.

import {
  byteLength,
  concat,
  empty,
  fromBinaryString,
  isUTF8,
  ProtocolError,
  Reader,
  toBinaryString,
  toText,
  Writer,
} from "./bytes.ts";
import { type Detail, readStatus } from "./status.ts";

/** The line that each side sends first. HELLO follows it. */
export const line = "nearcall/1\n";

export const minWindow = 65536; // the window until HELLO arrives, and the least that HELLO can set
export const minBlock = 16384;
export const messageCost = 5; // credit that a message takes in addition to its bytes
export const maxUint = 2 ** 53;
export const noLast = maxUint; // stands in DRAIN for a last call that is not known yet

const prefix = 2; // bytes of a frame that say its length
const maxFrame = 65535; // without the prefix
const maxTable = 65536;
const maxName = 256;
const stringCost = 32;
const profileStrings = 5;
const maxText = 4096;

/** Kinds of frames. */
export const Kind = {
  hello: 0x01,
  part: 0x02,
  reset: 0x03,
  credit: 0x04,
  ping: 0x05,
  pong: 0x06,
  drain: 0x07,
  bye: 0x08,
  stream: 0x80,
} as const;

const Flag = { head: 1, message: 2, piece: 4, more: 8, end: 0x10, compressed: 0x20, place: 0x40 } as const;

/** Codes of RESET. */
export const Reset = { cancelled: 0, deadline: 1, unprocessed: 2, unavailable: 3, protocol: 4, exhausted: 5 } as const;

/** Codes of BYE. */
export const Bye = { done: 0, protocol: 1, pings: 2, closed: 3, version: 4 } as const;

/** Bit 0 of HELLO's features: the sender accepts no calls. */
export const acceptsNoCalls = 1;

export interface Hello {
  version: number;
  features: number;
  stream: number; // window of a call, in bytes
  connection: number; // window of all calls together, in bytes
  calls: number; // how many calls the peer may have open; 0 for no limit
  block: number; // the size of the largest block that is accepted
  ping: number; // the minimum time between PINGs while a call is open, in milliseconds
  idlePing: number; // the same while no call is open
}

const helloFields = ["version", "features", "stream", "connection", "calls", "block", "ping", "idlePing"] as const;

/** The defaults for the peer until its HELLO arrives. */
export const unknownPeer: Hello = {
  version: 1,
  features: 0,
  stream: minWindow,
  connection: minWindow,
  calls: 0,
  block: minBlock,
  ping: 0,
  idlePing: 0,
};

/** Values have one character for each byte. */
export type Metadata = [key: string, value: string][];

export interface Profile {
  authority: string;
  userAgent: string;
  subtype: string;
  encoding: string;
  accept: string;
}

export interface CallHead {
  method: string;
  profile: Profile;
  timeout: number; // microseconds; 0 for none
  metadata: Metadata;
}

export interface End {
  code: number;
  message: string;
  status: Uint8Array; // a google.rpc.Status if there are details, otherwise empty
  details: Detail[]; // those in status, decoded
  trailer: Metadata;
}

/** Returns a status without details and trailer. */
export function plainEnd(code: number, message: string): End {
  return { code, message, status: new Uint8Array(0), details: [], trailer: [] };
}

/** A step of a call, in one frame. */
export interface StreamFrame {
  kind: typeof Kind.stream;
  stream: number;
  head?: CallHead | undefined; // from the caller
  header?: Metadata | undefined; // from the callee
  end?: End | undefined; // from the callee
  halfClose?: boolean; // from the caller
  begins?: boolean; // a message begins
  goesOn?: boolean; // a further piece of a message
  more?: boolean; // more pieces follow
  compressed?: boolean;
  size?: number; // of the whole message that begins
  data?: Uint8Array;
  wrong?: string | undefined; // an error that ends only this call
}

export type Frame =
  | StreamFrame
  | { kind: typeof Kind.hello; hello: Hello }
  | { kind: typeof Kind.reset; stream: number; code: number; text: string }
  | { kind: typeof Kind.credit; stream: number; n: number }
  | { kind: typeof Kind.ping | typeof Kind.pong; data: Uint8Array }
  | { kind: typeof Kind.drain; last: number }
  | { kind: typeof Kind.bye; code: number; text: string };

/**
 * Counts how much of its table of names a direction has used. Both sides count alike, so they agree
 * on which names get numbers.
 */
class Table {
  size = 0;

  add(strings: number, bytes: number): boolean {
    const size = this.size + strings * stringCost + bytes;
    if (size > maxTable) return false;
    this.size = size;
    return true;
  }
}

const stringsOf = (p: Profile) => [p.authority, p.userAgent, p.subtype, p.encoding, p.accept];
const bytesOf = (p: Profile) => stringsOf(p).reduce((n, s) => n + byteLength(s), 0);

/** The size of metadata, as a receiver counts it against its limit for a block. */
export function sizeOfMetadata(m: Metadata): number {
  return m.reduce((n, [k, v]) => n + k.length + v.length + stringCost, 0);
}

/** The size of the head of a call. */
export function sizeOfHead(h: CallHead): number {
  return (1 + profileStrings) * stringCost + byteLength(h.method) + bytesOf(h.profile) + sizeOfMetadata(h.metadata);
}

/** The size of the end of a call. */
export function sizeOfEnd(e: End): number {
  return (1 + e.details.length) * stringCost + byteLength(e.message) + e.status.length + sizeOfMetadata(e.trailer);
}

/** Encodes the frames that one side sends. It numbers their names and profiles. */
export class Encoder {
  readonly #out = new Writer();
  readonly #table = new Table();
  readonly #names = new Map<string, number>();
  readonly #profiles = new Map<string, number>();
  #lastProfile: Profile | undefined;
  #lastNumber = 0;
  #new: [Map<string, number>, string][] = []; // the names and profiles that the current frame has numbered
  #remembers = true; // new names get numbers

  get length(): number {
    return this.#out.length;
  }

  /** Returns what was encoded since the last call. */
  take(): Uint8Array<ArrayBuffer> {
    return this.#out.take();
  }

  #begin(kind: number, stream: number): number {
    const start = this.#out.length;
    this.#out.byte(0);
    this.#out.byte(0);
    this.#out.byte(kind);
    this.#out.uint(stream);
    return start;
  }

  line(): void {
    this.#out.text(line, line.length);
  }

  hello(h: Hello): void {
    const start = this.#begin(Kind.hello, 0);
    for (const field of helloFields) this.#out.uint(h[field]);
    this.#out.close(start);
  }

  reset(stream: number, code: number, text: string): void {
    this.#coded(Kind.reset, stream, code, text);
  }

  bye(code: number, text: string): void {
    this.#coded(Kind.bye, 0, code, text);
  }

  #coded(kind: number, stream: number, code: number, text: string): void {
    const start = this.#begin(kind, stream);
    this.#out.uint(code);
    this.#out.text(text, maxText);
    this.#out.close(start);
  }

  credit(stream: number, n: number): void {
    this.#number(Kind.credit, stream, n);
  }

  drain(last: number): void {
    this.#number(Kind.drain, 0, last);
  }

  #number(kind: number, stream: number, n: number): void {
    const start = this.#begin(kind, stream);
    this.#out.uint(n);
    this.#out.close(start);
  }

  ping(kind: typeof Kind.ping | typeof Kind.pong, data: Uint8Array): void {
    const start = this.#begin(kind, 0);
    this.#out.raw(data);
    this.#out.close(start);
  }

  /**
   * Encodes a step of a call, in several frames if its blocks are long. Its data must be at least
   * 64 bytes smaller than the largest frame.
   */
  stream(f: Omit<StreamFrame, "kind">): void {
    const size = this.#table.size;
    this.#new = [];
    const start = this.#begin(this.#flags(f), f.stream);
    const blocks = this.#out.length;
    this.#blocks(f);
    if (f.begins && f.more) this.#out.uint(f.size as number);
    const data = f.data?.length ?? 0;
    if (this.#out.length - start - 2 + data <= maxFrame) {
      if (f.data) this.#out.raw(f.data);
      this.#out.close(start);
      return;
    }
    this.#table.size = size;
    for (const [names, s] of this.#new) names.delete(s);
    this.#lastProfile = undefined;
    this.#out.length = start;
    if ((f.head || f.header) && f.end) {
      this.stream({ ...f, end: undefined });
      this.stream({ stream: f.stream, end: f.end });
    } else this.#inParts(f, blocks - start - 2);
  }

  /** Encodes a step with a long block. header is the length of the frame before the block. */
  #inParts(f: Omit<StreamFrame, "kind">, header: number): void {
    const start = this.#out.length;
    this.#remembers = false;
    this.#blocks(f);
    this.#remembers = true;
    let block = this.#out.from(start).slice();
    this.#out.length = start;
    const room = maxFrame - header;
    for (const last = room - (f.data?.length ?? 0) - 9; block.length > last; ) {
      const part = this.#begin(Kind.part, f.stream);
      const n = Math.min(room, block.length);
      this.#out.raw(block.subarray(0, n));
      this.#out.close(part);
      block = block.subarray(n);
    }
    const end = this.#begin(this.#flags(f), f.stream);
    this.#out.raw(block);
    if (f.begins && f.more) this.#out.uint(f.size as number);
    if (f.data) this.#out.raw(f.data);
    this.#out.close(end);
  }

  #flags(f: Omit<StreamFrame, "kind">): number {
    return (
      Kind.stream |
      (f.head || f.header ? Flag.head : 0) |
      (f.begins ? Flag.message : 0) |
      (f.goesOn ? Flag.piece : 0) |
      (f.more ? Flag.more : 0) |
      (f.end || f.halfClose ? Flag.end : 0)
    );
  }

  #blocks(f: Omit<StreamFrame, "kind">): void {
    if (f.head) {
      this.#name(f.head.method);
      this.#profile(f.head.profile);
      this.#out.uint(f.head.timeout);
      this.#metadata(f.head.metadata);
    } else if (f.header) this.#metadata(f.header);
    if (!f.end) return;
    this.#out.uint(f.end.code);
    if (f.end.code !== 0) {
      this.#out.string(f.end.message);
      this.#out.bytes(f.end.status);
    }
    this.#metadata(f.end.trailer);
  }

  #name(s: string): void {
    const n = this.#names.get(s);
    if (n !== undefined) return this.#out.uint(n + 2);
    const length = byteLength(s);
    const numbered = this.#remembers && length <= maxName && this.#table.add(1, length);
    if (numbered) this.#remember(this.#names, s, this.#names.size);
    this.#out.byte(numbered ? 0 : 1);
    this.#out.string(s);
  }

  #remember(table: Map<string, number>, s: string, n: number): void {
    table.set(s, n);
    this.#new.push([table, s]);
  }

  #profile(p: Profile): void {
    if (p === this.#lastProfile) return this.#out.uint(this.#lastNumber);
    const strings = stringsOf(p);
    const key = strings.join("\0");
    let n = this.#profiles.get(key);
    if (n !== undefined) this.#out.uint(n);
    else {
      this.#out.byte(0);
      for (const s of strings) this.#out.string(s);
      if (!this.#remembers || !this.#table.add(profileStrings, bytesOf(p))) return;
      n = this.#profiles.size + 1;
      this.#remember(this.#profiles, key, n);
    }
    this.#lastProfile = p;
    this.#lastNumber = n;
  }

  #metadata(m: Metadata): void {
    this.#out.uint(m.length);
    for (const [k, v] of m) {
      this.#name(k);
      this.#out.binary(v);
    }
  }
}

/** Returns a copy of b. Unlike b, the copy does not keep the received chunk in memory. */
const own = (b: Uint8Array) => (b.length > 0 ? b.slice() : empty);

const detailsKey = "grpc-status-details-bin";
const key = /^[0-9a-z\-_.!#$%&'*+^`|~]+$/;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for
const control = /[\0-\x08\x0a-\x1f\x7f]/;

/**
 * A received profile, with values that would otherwise be computed again for each call.
 */
interface KnownProfile {
  profile: Profile;
  bytes: number; // the total length of its strings
  controls: boolean; // a string has control characters
}

/** Returns the length of the frame whose prefix begins at the offset at. */
function lengthOf(b: Uint8Array, at: number): number {
  const n = (b[at] as number) | ((b[at + 1] as number) << 8);
  if (n < 2) throw new ProtocolError(`a frame of length ${n}`);
  return n;
}

/** The size of the block that is being read. */
class Block {
  readonly #what: string;
  readonly #limit: number;
  #size = 0;

  constructor(what: string, limit: number) {
    this.#what = what;
    this.#limit = limit;
  }

  /** Counts strings, and reports whether the block is still small enough. */
  spend(strings: number, bytes: number): boolean {
    this.#size += strings * stringCost + bytes;
    return this.#size <= this.#limit;
  }

  get tooLarge(): string {
    return `the ${this.#what} is larger than the limit of ${this.#limit} bytes`;
  }
}

/** Decodes the frames of one side. */
export class Decoder {
  readonly #block: number;
  readonly #from: "server" | "client";
  #greeted = 0; // bytes of the line that were read
  readonly #prefix = new Uint8Array(prefix); // the prefix of a frame that comes in several chunks
  #pending = this.#prefix; // the bytes of that frame, or of its prefix
  #come = 0; // how many bytes of pending have arrived
  readonly #table = new Table();
  readonly #names: string[] = [];
  readonly #profiles: KnownProfile[] = [];
  #parts: Uint8Array[] = [];
  #partsOf = 0;
  #partsLength = 0;

  // Of the current frame.
  #remembers = true;
  #wrong: string | undefined;

  /** block is the size of the largest block that is accepted. */
  constructor(block: number, from: "server" | "client" = "server") {
    this.#block = block;
    this.#from = from;
  }

  /** Decodes a chunk of the stream of bytes. Frames may share its memory. */
  push(chunk: Uint8Array, handle: (f: Frame) => void): void {
    for (let at = this.#line(chunk); at < chunk.length; ) {
      let end = this.#come === 0 && at + prefix <= chunk.length ? at + prefix + lengthOf(chunk, at) : undefined;
      let b: Uint8Array | undefined;
      if (end !== undefined && end <= chunk.length) b = chunk.subarray(at, end);
      else {
        end = Math.min(at + this.#pending.length - this.#come, chunk.length);
        b = this.#collect(chunk.subarray(at, end));
      }
      at = end;
      const f = b && this.#frame(b.subarray(prefix));
      if (f) handle(f);
    }
  }

  /** Takes the next bytes of a frame that comes in several chunks. It returns the frame when it is whole. */
  #collect(b: Uint8Array): Uint8Array | undefined {
    this.#pending.set(b, this.#come);
    this.#come += b.length;
    if (this.#come < this.#pending.length) return undefined;
    const pending = this.#pending;
    if (pending !== this.#prefix) {
      this.#pending = this.#prefix;
      this.#come = 0;
      return pending;
    }
    this.#pending = new Uint8Array(prefix + lengthOf(pending, 0));
    this.#pending.set(pending);
    return undefined;
  }

  /** Reads the line, or the part of it that is in the chunk, and returns how many bytes it has read. */
  #line(chunk: Uint8Array): number {
    let at = 0;
    for (; this.#greeted < line.length && at < chunk.length; this.#greeted++, at++) {
      if (chunk[at] === line.charCodeAt(this.#greeted)) continue;
      const begin = line.slice(0, this.#greeted) + toText(chunk.subarray(at, at + 40));
      throw new ProtocolError(`it does not speak nearcall's protocol, and begins with ${JSON.stringify(begin)}`);
    }
    return at;
  }

  #frame(b: Uint8Array): Frame | undefined {
    const r = new Reader(b);
    const kind = r.byte();
    const stream = r.uint();
    if (this.#parts.length > 0 && (stream !== this.#partsOf || (kind < Kind.stream && kind !== Kind.part))) {
      throw new ProtocolError("a block in pieces is interrupted");
    }
    const ofCall = kind >= Kind.stream || kind === Kind.part || kind === Kind.reset;
    if (ofCall ? stream === 0 : stream !== 0 && kind <= Kind.bye && kind !== Kind.credit) {
      throw new ProtocolError(`a frame of kind ${kind} has the stream ${stream}`);
    }
    if (kind >= Kind.stream) return this.#stream(r, kind, stream);
    switch (kind) {
      case Kind.hello:
        return { kind, hello: readHello(r) };
      case Kind.part:
        this.#part(stream, r.rest());
        return undefined;
      case Kind.reset:
        return { kind, stream, code: r.uint(), text: toText(r.rest()) };
      case Kind.bye:
        return { kind, code: r.uint(), text: toText(r.rest()) };
      case Kind.credit: {
        const n = r.uint();
        if (n === 0) throw new ProtocolError("a credit of nothing");
        r.end();
        return { kind, stream, n };
      }
      case Kind.ping:
      case Kind.pong: {
        const data = r.rest();
        if (data.length !== 8) throw new ProtocolError(`a ping of ${data.length} bytes`);
        return { kind, data };
      }
      case Kind.drain: {
        const last = r.uint();
        r.end();
        return { kind, last };
      }
    }
    if (kind >= 0x40) return undefined; // an extension
    throw new ProtocolError(`a frame of the unknown kind ${kind}`);
  }

  #part(stream: number, b: Uint8Array): void {
    this.#partsLength += b.length + stringCost;
    if (this.#partsLength > this.#block + maxFrame)
      throw new ProtocolError(`a block is larger than ${this.#block} bytes`);
    this.#partsOf = stream;
    this.#parts.push(b.slice());
  }

  #stream(r: Reader, kind: number, stream: number): StreamFrame {
    const flags = kind & 0x7f;
    const has = (flag: number) => (flags & flag) !== 0;
    const fromCaller = (stream % 2 === 0) === (this.#from === "server");
    const begins = has(Flag.message);
    const goesOn = has(Flag.piece);
    const more = has(Flag.more);
    if (
      flags === 0 ||
      has(Flag.place) ||
      (begins && goesOn) ||
      (goesOn && has(Flag.head)) ||
      (more && ((!begins && !goesOn) || has(Flag.end))) ||
      (has(Flag.compressed) && !begins)
    ) {
      throw new ProtocolError(`a frame of a call has the flags 0x${flags.toString(16)}`);
    }
    const f: StreamFrame = { kind: Kind.stream, stream, begins, goesOn, more, compressed: has(Flag.compressed) };
    this.#wrong = undefined;
    this.#remembers = this.#parts.length === 0;
    if (!this.#remembers) {
      if (!has(Flag.head) && (!has(Flag.end) || fromCaller))
        throw new ProtocolError("parts come before a frame without a block");
      r = new Reader(concat([...this.#parts, r.rest()]));
      this.#parts = [];
      this.#partsLength = 0;
    }
    if (has(Flag.head)) {
      if (fromCaller) f.head = this.#head(r);
      else f.header = this.#metadata(r, new Block("header", this.#block));
    }
    if (has(Flag.end)) {
      if (fromCaller) f.halfClose = true;
      else f.end = this.#end(r);
    }
    if (begins && more) f.size = r.uint();
    // A whole message does not share memory with others.
    if (begins || goesOn) f.data = begins && !more ? own(r.rest()) : r.rest();
    r.end();
    const length = f.data?.length ?? 0;
    if (begins && !more) f.size = length;
    else if (begins && (f.size as number) <= length)
      throw new ProtocolError(`a message of ${f.size} bytes goes on after ${length}`);
    if ((goesOn || more) && length === 0) throw new ProtocolError("a piece of a message is empty");
    f.wrong = this.#wrong;
    return f;
  }

  #object(wrong: string): void {
    this.#wrong ??= wrong;
  }

  #name(r: Reader): string {
    const n = r.uint();
    if (n >= 2) {
      const s = this.#names[n - 2];
      if (s === undefined) throw new ProtocolError(`name ${n - 2} of ${this.#names.length}`);
      return s;
    }
    const b = r.bytes();
    const s = toText(b);
    if (n === 1) return s;
    // A block in pieces has no new names, and long ones and those beyond the table have no number.
    if (!this.#remembers || b.length > maxName || !this.#table.add(1, b.length))
      throw new ProtocolError("a name that must have no number");
    this.#names.push(s);
    return s;
  }

  #profile(r: Reader): KnownProfile {
    const n = r.uint();
    if (n > 0) {
      const p = this.#profiles[n - 1];
      if (!p) throw new ProtocolError(`profile ${n} of ${this.#profiles.length}`);
      return p;
    }
    const profile = {
      authority: r.string(),
      userAgent: r.string(),
      subtype: r.string(),
      encoding: r.string(),
      accept: r.string(),
    };
    const p = { profile, bytes: bytesOf(profile), controls: stringsOf(profile).some((s) => control.test(s)) };
    if (this.#remembers && this.#table.add(profileStrings, p.bytes)) this.#profiles.push(p);
    return p;
  }

  #head(r: Reader): CallHead {
    const block = new Block("request header", this.#block);
    const method = this.#name(r);
    const { profile, bytes, controls } = this.#profile(r);
    if (controls || control.test(method)) this.#object("a part of the head has control characters");
    if (!block.spend(1 + profileStrings, byteLength(method) + bytes)) this.#object(block.tooLarge);
    return { method, profile, timeout: r.uint(), metadata: this.#metadata(r, block) };
  }

  #end(r: Reader): End {
    const block = new Block("end", this.#block);
    const end: End = { code: r.uint(), message: "", status: empty, details: [], trailer: [] };
    block.spend(1, 0);
    if (end.code !== 0) {
      const message = r.bytes();
      const status = r.bytes();
      if (end.code > 0xffffffff) this.#object(`a status of code ${end.code}`);
      if (!isUTF8(message)) this.#object("a status whose message is not UTF-8");
      if (!block.spend(0, message.length + status.length)) this.#object(block.tooLarge);
      else {
        end.message = toText(message);
        end.status = own(status);
      }
      if (end.status.length > 0 && this.#wrong === undefined) {
        const details = this.#details(end, end.status, block);
        if (details) end.details = details;
        else this.#object("a status whose details are malformed");
      }
    }
    end.trailer = this.#metadata(r, block);
    const values = end.trailer.filter(([k]) => k === detailsKey);
    if (values.length === 1) {
      const details = this.#details(end, fromBinaryString((values[0] as [string, string])[1]), block);
      // As in gRPC, this entry can carry the details. If it does not fit the status, it is
      // ordinary metadata.
      if (details && end.status.length === 0 && end.code !== 0) end.details = details;
    }
    return end;
  }

  /**
   * Reads the details of an end from an encoded google.rpc.Status. It returns undefined if that is
   * malformed or has another code.
   */
  #details(end: End, status: Uint8Array, block: Block): Detail[] | undefined {
    try {
      const { code, details } = readStatus(status, () => {
        const fits = block.spend(1, 0);
        if (!fits) this.#object(block.tooLarge);
        return fits;
      });
      if (code >>> 0 === end.code) return details;
    } catch {}
    return undefined;
  }

  /** Reads metadata. After an error of the call, it reads the rest only for the new names in it. */
  #metadata(r: Reader, block: Block): Metadata {
    const count = r.uint();
    if (count > r.left / 2) throw new ProtocolError("a frame ends early");
    const m: Metadata = [];
    const seen = new Set<string>();
    for (let i = 0, last: string | undefined; i < count; i++) {
      const k = this.#name(r);
      const v = r.bytes();
      if (!block.spend(1, k.length + v.length)) this.#object(block.tooLarge);
      if (this.#wrong !== undefined) continue;
      if (k !== last) {
        if (!key.test(k)) this.#object(`the key ${JSON.stringify(k.slice(0, 100))}`);
        if (seen.has(k)) this.#object(`the values of ${k} are not together`);
        seen.add(k);
        last = k;
      }
      const value = toBinaryString(v);
      if (!k.endsWith("-bin") && control.test(value)) this.#object(`a value of ${k} has control characters`);
      m.push([k, value]);
    }
    return m;
  }
}

function readHello(r: Reader): Hello {
  const h = { ...unknownPeer };
  for (const field of helloFields) h[field] = r.uint(); // further fields belong to later versions
  if (h.version === 0 || h.stream < minWindow || h.connection < minWindow || h.block < minBlock)
    throw new ProtocolError("version 0, or limits that are too small");
  return h;
}
