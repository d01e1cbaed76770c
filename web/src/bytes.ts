/** A violation of the protocol by the peer, which ends the connection. */
export class ProtocolError extends Error {
  override name = "ProtocolError";
}

const utf8 = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** An empty array. Empty values that were received share it, because each array takes some 100 bytes. */
export const empty = new Uint8Array(0);

/** The number of bytes that s takes in UTF-8. */
export function byteLength(s: string): number {
  return isASCII(s) ? s.length : utf8.encode(s).length;
}

function isASCII(s: string): boolean {
  for (let i = 0; i < s.length; i++) if (s.charCodeAt(i) > 0x7f) return false;
  return true;
}

/** Returns a string with one character for each byte of b. Metadata values are kept in this form. */
export function toBinaryString(b: Uint8Array): string {
  let s = "";
  if (b.length <= 64) for (let i = 0; i < b.length; i++) s += String.fromCharCode(b[i] as number);
  else for (let i = 0; i < b.length; i += atOnce) s += String.fromCharCode(...b.subarray(i, i + atOnce));
  return s;
}

/** How many characters toBinaryString adds to a long string at a time. JavaScript engines keep each added part, at a cost of 20 bytes. */
const atOnce = 4096;

/** Returns the bytes of a string that toBinaryString has made. */
export function fromBinaryString(s: string): Uint8Array {
  const b = new Uint8Array(s.length);
  for (let i = 0; i < s.length; i++) b[i] = s.charCodeAt(i);
  return b;
}

/** A growing buffer that the fields of frames are appended to. */
export class Writer {
  length = 0;
  #buf = new Uint8Array(4096);

  /** Returns a copy of the appended bytes, and begins again. */
  take(): Uint8Array<ArrayBuffer> {
    const b = this.#buf.slice(0, this.length);
    if (this.#buf.length > 1 << 18) this.#buf = new Uint8Array(4096);
    this.length = 0;
    return b;
  }

  /** Returns the bytes from the offset start to the end. The result is valid until the next append. */
  from(start: number): Uint8Array {
    return this.#buf.subarray(start, this.length);
  }

  #reserve(n: number): void {
    if (this.length + n <= this.#buf.length) return;
    const larger = new Uint8Array(Math.max(2 * this.#buf.length, this.length + n));
    larger.set(this.from(0));
    this.#buf = larger;
  }

  byte(n: number): void {
    this.#reserve(1);
    this.#buf[this.length++] = n;
  }

  /** Appends a number of at most 2^53 in LEB128. */
  uint(n: number): void {
    this.#reserve(9);
    for (; n > 0x7fffffff; n = Math.floor(n / 128)) this.#buf[this.length++] = (n % 128) | 0x80;
    for (; n >= 0x80; n >>>= 7) this.#buf[this.length++] = (n & 0x7f) | 0x80;
    this.#buf[this.length++] = n;
  }

  raw(b: Uint8Array): void {
    this.#reserve(b.length);
    this.#buf.set(b, this.length);
    this.length += b.length;
  }

  bytes(b: Uint8Array): void {
    this.uint(b.length);
    this.raw(b);
  }

  /** Appends a string with one character for each byte. */
  binary(s: string): void {
    this.uint(s.length);
    this.#reserve(s.length);
    for (let i = 0; i < s.length; i++) this.#buf[this.length++] = s.charCodeAt(i);
  }

  string(s: string): void {
    if (isASCII(s)) this.binary(s);
    else this.bytes(utf8.encode(s));
  }

  /** Appends the bytes of s in UTF-8, at most max of them. */
  text(s: string, max: number): void {
    const b = utf8.encode(s);
    let n = Math.min(b.length, max);
    while (n < b.length && ((b[n] as number) & 0xc0) === 0x80) n--;
    this.raw(b.subarray(0, n));
  }

  /** Writes the length of the frame that begins at the offset start. The two bytes of the length do not count. */
  close(start: number): void {
    const n = this.length - start - 2;
    this.#buf[start] = n & 0xff;
    this.#buf[start + 1] = n >> 8;
  }
}

/** Reads the fields of a frame. */
export class Reader {
  #b: Uint8Array;
  #at = 0;

  constructor(b: Uint8Array) {
    this.#b = b;
  }

  get left(): number {
    return this.#b.length - this.#at;
  }

  byte(): number {
    const n = this.#b[this.#at++];
    if (n === undefined) throw new ProtocolError("a frame ends early");
    return n;
  }

  /** Reads a number. A number above 2^53 is read as 2^53, which is far above any limit in use. */
  uint(): number {
    let x = this.byte();
    if (x < 0x80) return x;
    let n = x & 0x7f;
    for (let i = 1, unit = 128; i < 9; i++, unit *= 128) {
      x = this.byte();
      n += (x & 0x7f) * unit;
      if (x >= 0x80) continue;
      if (x === 0) throw new ProtocolError("a number is not in its shortest form");
      if (i === 8 && x >= 0x40) break; // 2^62
      return Math.min(n, 2 ** 53);
    }
    throw new ProtocolError("a number is too large");
  }

  /** Reads n bytes. The result shares the frame's memory. */
  take(n: number): Uint8Array {
    if (n > this.left) throw new ProtocolError("a frame ends early");
    this.#at += n;
    return this.#b.subarray(this.#at - n, this.#at);
  }

  bytes(): Uint8Array {
    return this.take(this.uint());
  }

  rest(): Uint8Array {
    return this.left > 0 ? this.take(this.left) : empty;
  }

  /** Reads a string. Invalid UTF-8 is replaced. */
  string(): string {
    return toText(this.bytes());
  }

  /** Throws if bytes of the frame are left. */
  end(): void {
    if (this.left > 0) throw new ProtocolError(`${this.left} bytes are left over at the end of a frame`);
  }
}

/** Decodes UTF-8. Invalid UTF-8 is replaced. */
export function toText(b: Uint8Array): string {
  if (b.length > 64) return decoder.decode(b);
  let s = "";
  for (let i = 0; i < b.length; i++) {
    const n = b[i] as number;
    if (n > 0x7f) return decoder.decode(b);
    s += String.fromCharCode(n);
  }
  return s;
}

/** Reports whether b is UTF-8. */
export function isUTF8(b: Uint8Array): boolean {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(b);
    return true;
  } catch {
    return false;
  }
}

/** Joins parts. */
export function concat(parts: Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}
