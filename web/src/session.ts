import { ProtocolError } from "./bytes.ts";
import { Call } from "./call.ts";
import { CallError, Code } from "./errors.ts";
import { Queue } from "./queue.ts";
import * as wire from "./wire.ts";
import { Bye, Kind, Reset } from "./wire.ts";

/** Carries the bytes of a session, in order. */
export interface Channel {
  send(b: Uint8Array<ArrayBuffer>): void;

  /** Closes the channel once all bytes were sent. */
  close(): void;
}

export interface SessionOptions {
  authority: string;
  userAgent: string;

  /** The largest message that is received, in bytes. */
  maxMessage?: number | undefined;

  /** Handles a call of the server; if it is missing, the session accepts none. */
  accept?: ((call: Call) => Promise<void>) | undefined;

  /** The window of a call: how many bytes the server can send before the page receives them, without having to wait. */
  window?: number | undefined;

  /** How many bytes the server may send on all calls together before they arrive. */
  connectionWindow?: number | undefined;

  /** The largest metadata that is received, in bytes. */
  block?: number | undefined;

  /** Is called when the session takes calls. */
  opened?: () => void;

  /** Is called once, when the session takes no more calls. Calls that have begun may still run. */
  drained?: () => void;

  /** Is called once, when the session has ended, perhaps right after drained. */
  ended?: (why: CallError) => void;
}

const defaultWindow = 256 << 10;
const defaultConnectionWindow = 4 << 20;
const defaultBlock = 1 << 20;
const maxServed = 1000; // calls of the server at a time

/** How long a drain waits for the server's answer, in milliseconds. */
const drainPatience = 10_000;
const drainPing = new Uint8Array(8).fill(1); // the PINGs that ping sends have zeros

/** How often a flush waits for the next microtask, in which callers may write more. */
const patience = 3;
const resolved = Promise.resolve(); // calling then on it is faster than queueMicrotask

/**
 * The client's side of a connection, over any channel of ordered bytes. Its owner calls `receive`
 * with the bytes that arrive, and `lost` when the channel has ended.
 *
 * Frames that are written in one turn of the event loop are sent together, because a WebSocket
 * message costs more than a frame.
 */
export class Session {
  /** The server's HELLO. */
  peer = wire.unknownPeer;

  /** How many bytes may still be sent on all calls together. */
  credit = wire.minWindow;

  /**
   * How many bytes the server may send on a call before it gets more credit. The session can hold
   * back the credit for a third of them. The other two thirds are the promised window.
   */
  readonly granted: number;
  readonly maxMessage: number;

  /** When bytes last arrived from the server, as performance.now counts. */
  heardAt = performance.now();

  readonly #channel: Channel;
  readonly #connectionWindow: number;
  readonly #options: SessionOptions;
  readonly #encoder = new wire.Encoder();
  readonly #decoder: wire.Decoder;
  readonly #profile: wire.Profile;

  readonly #calls = new Map<number, Call>();
  #lastCall = -1; // the number of the client's last call
  #lastServed = 0; // the number of the server's last call
  #open = 0; // calls of the client, and slots that were given for them
  #served = 0; // calls of the server that are open
  #handled = 0; // calls of the server whose handlers run: they may have been reset
  #unhandled = new Set<Call>(); // open calls of the server whose handlers start when those of other calls have ended
  readonly #slots = new Queue<() => void>(); // functions that resolve the waits for a slot
  #endings: (() => void)[] = []; // functions that resolve the promises of another
  readonly #turns = new Queue<Call>(); // calls with messages that could not be written at once

  #received = 0; // credit of the connection that was not granted again yet
  #hello = false; // the server's HELLO has arrived
  #frames = 0; // how many frames have arrived
  #why: CallError | undefined; // why the session has ended
  #drained = false; // the session takes no more calls: a side has drained it, or it has ended
  #left = false; // drain was called
  #announced: ReturnType<typeof setTimeout> | undefined; // the timer that ends the wait for a drain's answer
  #refuses = false; // the last DRAIN was sent
  #serverDrains = 0; // how many DRAINs have come
  #serverTakes = Number.POSITIVE_INFINITY; // the number of the last call that the server takes
  #flushing = false;
  #pinged: (() => void) | undefined;

  constructor(channel: Channel, options: SessionOptions) {
    this.#channel = channel;
    this.#options = options;
    this.granted = Math.floor(1.5 * (options.window ?? defaultWindow));
    this.maxMessage = options.maxMessage ?? Number.MAX_SAFE_INTEGER;
    this.#connectionWindow = options.connectionWindow ?? defaultConnectionWindow;
    this.#profile = {
      authority: options.authority,
      userAgent: options.userAgent,
      subtype: "",
      encoding: "",
      accept: "",
    };
    const block = options.block ?? defaultBlock;
    this.#decoder = new wire.Decoder(block);
    this.#encoder.line();
    this.#encoder.hello({
      version: 1,
      features: options.accept ? 0 : wire.acceptsNoCalls,
      stream: this.granted,
      connection: this.#connectionWindow,
      calls: options.accept ? maxServed : 0,
      block,
      ping: 0,
      idlePing: 0,
    });
    this.#flush();
  }

  /** Whether the session takes new calls. */
  get usable(): boolean {
    return this.#hello && !this.#why && !this.#drained;
  }

  /** Why the session has ended; undefined if it has not. */
  get why(): CallError | undefined {
    return this.#why;
  }

  /** Whether drain was called, which lets the session end. */
  get left(): boolean {
    return this.#left;
  }

  /** Whether a lost connection must be noticed, because calls are open or the server may make some. */
  get wanted(): boolean {
    return this.busy || this.#options.accept !== undefined;
  }

  /** Whether calls of either side are open. */
  get busy(): boolean {
    return this.#calls.size > 0;
  }

  /** Whether calls wait for their turn to write. */
  get crowded(): boolean {
    return this.#turns.length > 0;
  }

  /**
   * Waits until the server can take another call, and reserves a slot for it. The caller must then
   * call open or release. It returns undefined if there is no need to wait. The promise also
   * resolves when the session takes no more calls.
   */
  slot(): Promise<void> | undefined {
    if (this.#slots.length === 0 && this.#hasSlot()) {
      this.#open++;
      return undefined;
    }
    return new Promise((resolve) => this.#slots.push(resolve));
  }

  #hasSlot(): boolean {
    return !this.usable || this.peer.calls === 0 || this.#open < this.peer.calls;
  }

  /** Gives back a slot that was not used, or whose call has ended. */
  release(): void {
    this.#open--;
    this.#giveSlots();
  }

  #giveSlots(): void {
    while (this.#slots.length > 0 && this.#hasSlot()) {
      this.#open++;
      this.#slots.shift()?.();
    }
  }

  /** Resolves when the next call of the client ends, by itself or with the session. */
  another(): Promise<void> {
    return new Promise((resolve) => this.#endings.push(resolve));
  }

  /**
   * Opens a call in a slot. If message is given, it is all that the caller sends. It throws a
   * CallError if the session has ended, if the server takes no calls, or if the metadata is too
   * large for the server. Then the slot is free again.
   */
  open(head: Omit<wire.CallHead, "profile">, message?: Uint8Array): Call {
    const whole: wire.CallHead = { ...head, profile: this.#profile };
    const size = wire.sizeOfHead(whole);
    if (this.#why || size > this.peer.block || this.peer.features & wire.acceptsNoCalls) {
      this.release();
      if (this.peer.features & wire.acceptsNoCalls)
        throw new CallError(Code.unimplemented, "the server takes no calls");
      throw (
        this.#why ??
        new CallError(
          Code.internal,
          `the metadata of the call has ${size} bytes, more than the ${this.peer.block} that the server takes`,
        )
      );
    }
    this.#lastCall += 2;
    const call = new Call(this, this.#lastCall);
    if (head.timeout > 0) call.deadline = performance.now() + head.timeout / 1000;
    this.#calls.set(call.id, call);
    const cost = message ? message.length + wire.messageCost : 0;
    if (message && !this.crowded && message.length <= 16 << 10 && cost <= Math.min(this.peer.stream, this.credit)) {
      this.credit -= cost;
      call.sentWhole(message);
      this.write({ stream: call.id, head: whole, begins: true, halfClose: true, data: message });
    } else {
      this.write({ stream: call.id, head: whole });
      if (message) void call.send(message, true);
    }
    return call;
  }

  /** Writes a step of a call. */
  write(f: Omit<wire.StreamFrame, "kind">): void {
    if (this.#why) return;
    this.#encoder.stream(f);
    this.#wake();
  }

  /** Resets a call. */
  reset(stream: number, code: number, text: string): void {
    if (this.#why) return;
    this.#encoder.reset(stream, code, text);
    this.#wake();
  }

  /** Grants n bytes of credit for a call, or for all calls together if stream is 0. */
  grant(stream: number, n: number): void {
    if (this.#why) return;
    this.#encoder.credit(stream, n);
    this.#wake();
  }

  /** Queues a call that waits for its turn to write. */
  queue(call: Call): void {
    this.#turns.push(call);
    this.#wake();
  }

  /** Is called by a call that has ended. */
  ended(call: Call): void {
    this.#calls.delete(call.id);
    if (!call.head) {
      this.release();
      for (const resolve of this.#endings.splice(0)) resolve();
    } else {
      this.#served--;
      this.#unhandled.delete(call);
    }
    this.#leaveIfIdle();
  }

  #wake(): void {
    if (this.#flushing) return;
    this.#flushing = true;
    this.#flushLater(patience, 0);
  }

  /** Flushes once nothing was written for some microtasks. */
  #flushLater(left: number, length: number): void {
    void resolved.then(() => {
      const grown = this.#encoder.length > length;
      if (!grown && left === 0) {
        this.#flushing = false;
        this.#takeTurns();
        this.#flush();
      } else this.#flushLater(grown ? patience : left - 1, this.#encoder.length);
    });
  }

  #takeTurns(): void {
    let n = this.#turns.length;
    while (n > 0 && this.credit > wire.messageCost) {
      const call = this.#turns.shift() as Call;
      if (call.writePiece()) this.#turns.push(call);
      else n--;
    }
  }

  #flush(): void {
    if (this.#encoder.length > 0) this.#channel.send(this.#encoder.take());
  }

  /** Sends a PING. The promise resolves when anything arrives after that, or when the session ends. */
  ping(): Promise<void> {
    if (!this.#why) {
      this.#encoder.ping(Kind.ping, new Uint8Array(8));
      this.#flush();
    }
    return new Promise((resolve) => {
      this.#pinged = resolve;
    });
  }

  /** Handles bytes that the channel has received. */
  receive(chunk: Uint8Array): void {
    if (this.#why) return;
    this.heardAt = performance.now();
    this.#pinged?.();
    this.#pinged = undefined;
    try {
      this.#decoder.push(chunk, (f) => this.#handle(f));
    } catch (e) {
      this.violated(e instanceof ProtocolError ? e.message : "an internal error of the client");
      if (!(e instanceof ProtocolError)) throw e;
    }
  }

  /** Ends the session because the server has broken a rule. */
  violated(rule: string): void {
    if (this.#why) return;
    this.#leave(
      Bye.protocol,
      rule,
      new CallError(Code.unavailable, `the server has broken nearcall's protocol: ${rule}`),
    );
  }

  /** Ends the session because its channel has ended. */
  lost(why: string): void {
    const e = new CallError(Code.unavailable, why);
    this.#end(e);
  }

  /** Ends the session and its calls. */
  close(why = new CallError(Code.cancelled, "the transport was closed")): void {
    this.#leave(Bye.closed, why.message, why);
  }

  /** Makes the session take no more calls, and end when none is left. */
  drain(): void {
    if (this.#drained || this.#why) return;
    this.#left = true;
    this.#stop();
    this.#announce();
    this.#leaveIfIdle();
  }

  /**
   * Tells the server to make no more calls. Calls that the server makes before it learns of this
   * are accepted.
   */
  #announce(): void {
    if (this.#refuses || this.#announced) return;
    if (!this.#options.accept) return this.#refuse();
    this.#encoder.drain(wire.noLast);
    this.#encoder.ping(Kind.ping, drainPing);
    this.#announced = setTimeout(() => this.#refuse(), drainPatience);
    this.#wake();
  }

  /**
   * Refuses the server's calls from now on. It is called when the server has answered the
   * announcement or is late to answer, or at once if the page serves no calls.
   */
  #refuse(): void {
    if (this.#refuses) return;
    clearTimeout(this.#announced);
    this.#refuses = true;
    this.#encoder.drain(this.#lastServed);
    this.#wake();
    this.#leaveIfIdle();
  }

  /** Ends the session if it has drained, no call is left, and no call of the server can be on its way. */
  #leaveIfIdle(): void {
    if (!this.#drained || this.busy || this.#why) return;
    if (this.#refuses) this.#leave(Bye.done, "");
    else this.#announce();
  }

  /** Takes no more calls. */
  #stop(): void {
    if (this.#drained) return;
    this.#drained = true;
    this.#giveSlots();
    this.#options.drained?.();
  }

  #leave(code: number, text: string, why = CallError.unprocessed("the connection has ended")): void {
    if (this.#why) return;
    if (!this.#refuses) this.#encoder.drain(this.#lastServed);
    this.#refuses = true;
    this.#encoder.bye(code, text);
    this.#flush();
    this.#channel.close();
    this.#end(why);
  }

  #end(why: CallError): void {
    if (this.#why) return;
    this.#why = why;
    clearTimeout(this.#announced);
    this.#stop();
    for (const call of [...this.#calls.values()]) call.fail(why);
    this.#pinged?.();
    this.#options.ended?.(why);
  }

  #handle(f: wire.Frame): void {
    if (this.#why) return;
    if (this.#hello === (f.kind === Kind.hello))
      throw new ProtocolError(this.#hello ? "a second HELLO" : "the first frame is not HELLO");
    this.#frames++;
    switch (f.kind) {
      case Kind.stream:
        return this.#step(f);
      case Kind.hello:
        return this.#greeted(f.hello);
      case Kind.reset:
        return this.#calls.get(this.#known(f.stream))?.fail(resetError(f.code, f.text));
      case Kind.credit:
        if (f.stream !== 0) return this.#calls.get(this.#known(f.stream))?.addCredit(f.n);
        this.credit = Math.min(this.credit + f.n, wire.maxUint);
        if (this.crowded) this.#wake();
        return;
      case Kind.ping:
        this.#encoder.ping(Kind.pong, f.data);
        return this.#wake();
      case Kind.pong:
        if (this.#announced && f.data.every((b, i) => b === drainPing[i])) this.#refuse();
        return;
      case Kind.drain:
        return this.#serverDrained(f.last);
      case Kind.bye:
        return this.#serverLeaves(f.code, f.text);
    }
  }

  #greeted(hello: wire.Hello): void {
    this.#hello = true;
    this.peer = hello;
    this.credit += hello.connection - wire.minWindow;
    this.#options.opened?.();
  }

  /** Returns the number of a call. It throws if no call with that number was made. */
  #known(stream: number): number {
    if (stream > (stream % 2 === 0 ? this.#lastServed : this.#lastCall))
      throw new ProtocolError(`call ${stream} was not made`);
    return stream;
  }

  #step(f: wire.StreamFrame): void {
    if (f.data) this.#consume(f.data.length + (f.begins ? wire.messageCost : 0));
    if (f.stream % 2 === 0 && f.stream > this.#lastServed) return this.#serve(f);
    if (f.head) throw new ProtocolError(`call ${f.stream} begins a second time`);
    this.#calls.get(this.#known(f.stream))?.handle(f);
  }

  /**
   * Grants the server new credit of the connection for bytes that have arrived, even before they
   * are received. The credit of their call bounds how many bytes wait.
   */
  #consume(cost: number): void {
    this.#received += cost;
    if (this.#received < this.#connectionWindow / 4) return;
    this.grant(0, this.#received);
    this.#received = 0;
  }

  #serve(f: wire.StreamFrame): void {
    if (!f.head) throw new ProtocolError(`call ${f.stream} was not made`);
    this.#lastServed = f.stream;
    if (this.#refuses) return; // ignored: the call's number is above DRAIN's last
    const { accept } = this.#options;
    if (!accept || this.#served >= maxServed)
      return this.reset(f.stream, Reset.unprocessed, accept ? "too many calls" : "this client takes no calls");
    const call = new Call(this, f.stream, f.head);
    this.#calls.set(call.id, call);
    this.#served++;
    this.#unhandled.add(call);
    call.handle(f);
    this.#handleMore(accept);
  }

  /** Starts the handlers of calls that wait, as many as may run. */
  #handleMore(accept: (call: Call) => Promise<void>): void {
    for (const call of this.#unhandled) {
      if (this.#handled >= maxServed) return;
      this.#unhandled.delete(call);
      this.#handled++;
      const handled = () => {
        this.#handled--;
        this.#handleMore(accept);
      };
      accept(call).then(handled, handled);
    }
  }

  #serverDrained(last: number): void {
    if (++this.#serverDrains > 2 || last >= this.#serverTakes)
      throw new ProtocolError("a DRAIN that says nothing new, or a third one");
    this.#serverTakes = last;
    this.#stop();
    for (const call of [...this.#calls.values()]) {
      if (!call.head && call.id > last) call.fail(CallError.unprocessed("the server is stopping"));
    }
    this.#leaveIfIdle();
  }

  #serverLeaves(code: number, text: string): void {
    this.#channel.close();
    const why = new CallError(
      Code.unavailable,
      `the server has closed the connection${text ? `: ${text}` : ` with code ${code}`}`,
    );
    why.unprocessed = this.#frames === 2; // a BYE right after HELLO refuses the connection
    this.#end(why);
  }
}

function resetError(code: number, text: string): CallError {
  const message = text || "the server has reset the call";
  switch (code) {
    case Reset.cancelled:
      return new CallError(Code.cancelled, message);
    case Reset.deadline:
      return new CallError(Code.deadlineExceeded, message);
    case Reset.unprocessed:
      return CallError.unprocessed(message);
    case Reset.protocol:
      return new CallError(Code.internal, message);
    case Reset.exhausted:
      return new CallError(Code.resourceExhausted, message);
  }
  return new CallError(Code.unavailable, message);
}
