import { empty, ProtocolError } from "./bytes.ts";
import { CallError, Code } from "./errors.ts";
import { Queue } from "./queue.ts";
import type { Session } from "./session.ts";
import { type CallHead, type End, type Metadata, messageCost, plainEnd, Reset, type StreamFrame } from "./wire.ts";

/** The largest message that is sent in one frame, in bytes. */
const maxWhole = 32 << 10;

/** The size of the pieces of larger messages, in bytes. Sending them in pieces lets calls take turns. */
const pieceSize = 16 << 10;

/** The least room for a message that comes in pieces, in bytes. */
const firstRoom = 1 << 10;

interface Outgoing {
  data: Uint8Array;
  sent: number; // how many bytes of data were sent
  begun: boolean;
  halfClose: boolean; // a half-close follows the message
  written: () => void;
}

interface Receiver {
  resolve(m: Uint8Array | undefined): void;
  reject(e: CallError): void;
}

/**
 * One side of a call. It ends once: by its status, by a RESET of either side, or with its
 * connection. Messages that are sent after the end are dropped: the receiver learns of the end.
 */
export class Call {
  readonly session: Session;
  readonly id: number;

  /** The head that opened the call; undefined if this side makes the call. */
  readonly head: CallHead | undefined;

  /** The callee's header; undefined until it has arrived. */
  header: Metadata | undefined;

  /** The callee's status and trailer, if they have ended the call; otherwise undefined. */
  end: End | undefined;

  /** Why the call has failed. */
  error: CallError | undefined;

  /** Whether the call has ended. */
  over = false;

  /** Whether a frame has arrived from the callee. If so, the call must not be made again. */
  answered = false;

  /** When the call times out, as performance.now counts; infinity if it has no timeout or the peer makes it. */
  deadline = Number.POSITIVE_INFINITY;

  /** Is called when the call has ended. */
  onOver: (() => void) | undefined;

  // What goes out.
  #credit: number;
  #outgoing: Outgoing[] = [];
  #queued = false; // the call is in the session's queue of calls that wait to write
  #halfClosed = false;
  #headerSent = false; // the callee's header was sent

  // What comes in.
  #granted: number; // credit that the peer has left, in bytes
  #consumed = 0; // credit of received messages that was not granted again yet
  #advance = 0; // credit that was granted early for a message, and is deducted from later grants
  readonly #inbox = new Queue<Uint8Array>();
  #partial: Uint8Array | undefined; // the buffer of a message that arrives in pieces, which grows as they arrive
  #length = 0; // how many bytes of the message have arrived
  #size = 0; // the size of that message, in bytes
  #receiver: Receiver | undefined;
  #peerClosed = false; // the caller has half-closed
  #settle!: () => void; // headed

  /** Resolves at the first header or part of a message from the callee, or when the call has ended. */
  readonly headed = new Promise<void>((resolve) => {
    this.#settle = resolve;
  });

  constructor(session: Session, id: number, head?: CallHead) {
    this.session = session;
    this.id = id;
    this.head = head;
    this.#credit = session.peer.stream;
    this.#granted = session.granted;
  }

  /** Records that the frame that opens the call has its only message, m. */
  sentWhole(m: Uint8Array): void {
    this.#credit -= m.length + messageCost;
    this.#halfClosed = true;
  }

  /**
   * Sends a message. It returns undefined if the message was written or the call takes no more
   * messages. Otherwise it returns a promise that resolves when the message was written or the
   * call has ended. The caller must not change data afterwards.
   */
  send(data: Uint8Array, halfClose = false): Promise<void> | undefined {
    if (this.over || this.#halfClosed) return undefined;
    this.#halfClosed = halfClose;
    const session = this.session;
    const cost = data.length + messageCost;
    if (
      this.#outgoing.length === 0 &&
      !session.crowded &&
      data.length <= maxWhole &&
      cost <= Math.min(this.#credit, session.credit)
    ) {
      this.#spend(cost);
      session.write({ stream: this.id, begins: true, halfClose, data });
      return undefined;
    }
    return new Promise((written) => {
      this.#outgoing.push({ data, sent: 0, begun: false, halfClose, written });
      this.#queue();
    });
  }

  /** Tells the callee that no more messages follow. */
  halfClose(): void {
    if (this.over || this.#halfClosed) return;
    this.#halfClosed = true;
    const last = this.#outgoing.at(-1);
    if (last) last.halfClose = true;
    else this.session.write({ stream: this.id, halfClose: true });
  }

  #spend(cost: number): void {
    this.#credit -= cost;
    this.session.credit -= cost;
  }

  #queue(): void {
    if (this.#queued || this.#outgoing.length === 0) return;
    this.#queued = true;
    this.session.queue(this);
  }

  /**
   * Writes the next piece of the queued messages. The session calls it only while it has credit
   * for a piece. If writePiece returns false, the call has nothing left to write or no credit, and
   * the session does not queue it again.
   */
  writePiece(): boolean {
    const next = this.#outgoing[0];
    if (!next || this.over) {
      this.#queued = false;
      return false;
    }
    const overhead = next.begun ? 0 : messageCost;
    const left = next.data.length - next.sent;
    const credit = Math.min(this.#credit, this.session.credit) - overhead;
    const n = left <= maxWhole && left <= credit ? left : Math.min(pieceSize, credit);
    if (n < Math.min(left, 1)) {
      this.#queued = false;
      return false;
    }
    const more = n < left;
    this.#spend(n + overhead);
    this.session.write({
      stream: this.id,
      begins: !next.begun,
      goesOn: next.begun,
      more,
      halfClose: next.halfClose && !more,
      size: next.data.length,
      data: next.data.subarray(next.sent, next.sent + n),
    });
    next.sent += n;
    next.begun = true;
    if (!more) {
      this.#outgoing.shift();
      next.written();
    }
    this.#queued = this.#outgoing.length > 0;
    return this.#queued;
  }

  /** Adds credit that the peer has granted. */
  addCredit(n: number): void {
    this.#credit += n;
    this.#queue();
  }

  /** Sends the callee's header, once. */
  sendHeader(header: Metadata): void {
    if (this.over || this.#headerSent) return;
    this.#headerSent = true;
    this.session.write({ stream: this.id, header });
  }

  /** Ends a call that the peer makes. All messages must have been written before. */
  sendEnd(end: End): void {
    if (this.over) return;
    this.session.write({ stream: this.id, end });
    this.#finish(undefined);
  }

  /** Receives the next message; undefined after the last. It rejects if the call fails. */
  receive(): Promise<Uint8Array | undefined> {
    const m = this.#inbox.shift();
    if (m) {
      this.#consume(m.length);
      return Promise.resolve(m);
    }
    if (this.error) return Promise.reject(this.error);
    if (this.over || this.#peerClosed) return Promise.resolve(undefined);
    return new Promise((resolve, reject) => {
      this.#receiver = { resolve, reject };
      this.#grantMissing();
    });
  }

  /** Abandons the call: sends RESET with the code, and fails receive with error. */
  abandon(code: number, error: CallError): void {
    if (this.over) return;
    this.session.reset(this.id, code, error.message);
    this.#drop(error);
  }

  #drop(error: CallError): void {
    this.#inbox.clear();
    this.#finish(error);
  }

  /** Ends the call because the peer or the connection has ended it. */
  fail(error: CallError): void {
    if (this.answered) error.unprocessed = false;
    this.#finish(error);
  }

  #finish(error: CallError | undefined): void {
    if (this.over) return;
    this.over = true;
    this.error = error;
    for (const o of this.#outgoing) o.written();
    this.#outgoing = [];
    this.#partial = undefined;
    if (error)
      this.#receiver?.reject(error); // no message is lost: the inbox is empty while a receiver waits
    else this.#receiver?.resolve(undefined);
    this.#receiver = undefined;
    this.#settle();
    this.session.ended(this);
    this.onOver?.();
  }

  /** Handles a frame. An exception ends the connection. */
  handle(f: StreamFrame): void {
    this.answered ||= !this.head;
    this.#checkOrder(f);
    const data = f.data;
    if (data) this.#pay(data.length + (f.begins ? messageCost : 0));
    if (f.wrong !== undefined) {
      this.#refuse(Reset.protocol, Code.internal, f.wrong);
      return;
    }
    if (f.header) this.header = f.header;
    if (f.header || f.end || data) this.#settle();
    if (data && !this.#message(f, data)) return;
    if (f.halfClose) {
      this.#peerClosed = true;
      this.#receiver?.resolve(undefined);
      this.#receiver = undefined;
    }
    if (f.end) this.#ended(f.end);
  }

  #checkOrder(f: StreamFrame): void {
    const within = this.#partial !== undefined;
    if (within !== (f.goesOn === true))
      throw new ProtocolError(`call ${this.id}: ${within ? "a message is interrupted" : "a piece of no message"}`);
    if (this.#peerClosed) throw new ProtocolError(`call ${this.id}: a frame comes after the half-close`);
    if (f.header && (this.header || this.#inbox.length > 0))
      throw new ProtocolError(`call ${this.id}: a second header`);
  }

  #pay(cost: number): void {
    if (cost > this.#granted) throw new ProtocolError(`call ${this.id}: more was sent than its credit allows`);
    this.#granted -= cost;
  }

  /** Handles a message or a piece of one. It returns false if it has refused the message and ended the call. */
  #message(f: StreamFrame, data: Uint8Array): boolean {
    const size = f.size as number;
    if (f.compressed) return this.#refuse(Reset.cancelled, Code.internal, "an unexpected compressed message");
    if (f.begins && size > this.session.maxMessage) {
      return this.#refuse(
        Reset.cancelled,
        Code.resourceExhausted,
        `a message of ${size} bytes is larger than the limit of ${this.session.maxMessage}`,
      );
    }
    if (f.begins && !f.more) this.#deliver(data);
    else this.#piece(f, data);
    return true;
  }

  #piece(f: StreamFrame, data: Uint8Array): void {
    if (f.begins) {
      this.#partial = empty;
      this.#length = 0;
      this.#size = f.size as number;
    }
    const length = this.#length + data.length;
    if (f.more ? length >= this.#size : length !== this.#size)
      throw new ProtocolError(`call ${this.id}: the pieces of a message are not of its size`);
    const m = this.#room(length);
    m.set(data, this.#length);
    this.#length = length;
    if (f.more) {
      this.#grantMissing();
      return;
    }
    this.#partial = undefined;
    this.#deliver(m);
  }

  /**
   * Returns a buffer with room for the first length bytes of the message. Announcing a size costs
   * the peer nothing, so the buffer grows only as bytes arrive.
   */
  #room(length: number): Uint8Array {
    let m = this.#partial as Uint8Array;
    if (m.length < length) {
      m = new Uint8Array(Math.min(this.#size, Math.max(2 * length, firstRoom)));
      m.set((this.#partial as Uint8Array).subarray(0, this.#length));
      this.#partial = m;
    }
    return m;
  }

  #deliver(m: Uint8Array): void {
    const receiver = this.#receiver;
    if (!receiver) {
      this.#inbox.push(m);
      return;
    }
    this.#receiver = undefined;
    this.#consume(m.length);
    receiver.resolve(m);
  }

  /** If a receiver waits for an unfinished message, grants the credit for the rest of it, however large it is. */
  #grantMissing(): void {
    if (!this.#receiver || !this.#partial) return;
    const missing = this.#size - this.#length - this.#granted;
    if (missing <= 0) return;
    this.#advance += missing;
    this.#grant(missing);
  }

  #grant(n: number): void {
    this.#granted += n;
    this.session.grant(this.id, n);
  }

  /** Returns the credit of a received message, once enough credit has gathered to be worth a frame. */
  #consume(length: number): void {
    this.#consumed += length + messageCost;
    const early = Math.min(this.#consumed, this.#advance);
    this.#consumed -= early;
    this.#advance -= early;
    if (this.over || this.#peerClosed || this.#consumed < this.session.granted / 3) return;
    this.#grant(this.#consumed);
    this.#consumed = 0;
  }

  /**
   * Ends the call with the callee's status. Timers can be late, so an end that arrives after the
   * deadline does not count.
   */
  #ended(end: End): void {
    if (performance.now() >= this.deadline)
      return this.#finish(new CallError(Code.deadlineExceeded, "the operation timed out"));
    this.end = end;
    if (end.code === 0) return this.#finish(undefined);
    const error = new CallError(end.code, end.message);
    error.details = end.details;
    error.trailer = end.trailer;
    this.#finish(error);
  }

  #refuse(reset: number, code: number, message: string): false {
    if (this.head && reset === Reset.cancelled && !this.#outgoing[0]?.begun) {
      this.session.write({ stream: this.id, end: plainEnd(code, message) }); // the caller learns why
      this.#drop(new CallError(code, message));
    } else this.abandon(reset, new CallError(code, message));
    return false;
  }
}
