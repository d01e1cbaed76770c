import { CallError, Code } from "./errors.ts";
import type { Session } from "./session.ts";
import { Socket, type SocketOptions } from "./socket.ts";

/**
 * What a connection is doing:
 *
 * - `idle`: there is none; the next call connects.
 * - `connecting`: calls wait for it.
 * - `ready`: it takes calls.
 * - `failed`: it could not be made, and calls fail until the next attempt is due.
 * - `closed`: by its owner, for ever.
 */
export type ConnectionState = "idle" | "connecting" | "ready" | "failed" | "closed";

const backoff = { first: 500, factor: 1.6, max: 30_000, jitter: 0.2 }; // milliseconds

interface Waiting {
  resolve(s: Session): void;
  reject(e: CallError): void;
}

/** Makes WebSockets, one after another, when calls need them. */
export class Connection {
  readonly #options: SocketOptions;
  readonly #changed: (state: ConnectionState) => void;
  readonly #sockets = new Set<Socket>(); // also those that take no more calls
  #state: ConnectionState = "idle";
  #current: Socket | undefined; // that takes calls, or will
  #latest: Socket | undefined;
  #waiting: Waiting[] = []; // for the current one
  #failures = 0; // in a row
  #suspended = false;
  #due = 0; // when the next attempt may be made, by performance.now
  #why = ""; // the last attempt has failed
  #retry: ReturnType<typeof setTimeout> | undefined; // connects to serve

  constructor(options: SocketOptions, changed: (state: ConnectionState) => void) {
    this.#options = options;
    this.#changed = changed;
  }

  get state(): ConnectionState {
    return this.#state;
  }

  #change(state: ConnectionState): void {
    if (this.#state === state || this.#state === "closed") return;
    this.#state = state;
    this.#changed(state);
  }

  /** Returns a session that takes calls. It connects if there is none. */
  session(): Session | Promise<Session> {
    const session = this.#current?.session;
    if (session?.usable) return session;
    return new Promise((resolve, reject) => {
      if (!this.#current) this.#connect();
      this.#waiting.push({ resolve, reject });
    });
  }

  /** Milliseconds until the next attempt may be made; not above 0 if it may now. */
  get dueIn(): number {
    return this.#due - performance.now();
  }

  #connect(): void {
    if (this.#state === "closed") throw closed();
    if (this.#suspended) throw suspended();
    if (this.dueIn > 0)
      throw CallError.unprocessed(`${this.#why} (the next attempt is due in ${(this.dueIn / 1000).toFixed(1)} s)`);
    const socket = new Socket(this.#options);
    this.#sockets.add(socket);
    this.#current = this.#latest = socket;
    socket.opened = (session) => {
      this.#change("ready");
      for (const w of this.#waiting.splice(0)) w.resolve(session);
    };
    socket.drained = () => {
      if (this.#current !== socket) return;
      this.#current = undefined;
      if (this.#state === "ready") this.#change("idle");
      this.#stay();
    };
    socket.ended = (why, failed) => {
      this.#sockets.delete(socket);
      if (socket !== this.#latest) return; // only the latest socket tells how the connection fares
      if (failed && this.#state !== "closed") this.#failed(why);
      else {
        this.#failures = 0;
        this.#change("idle");
      }
      for (const w of this.#waiting.splice(0)) w.reject(why);
      this.#stay();
    };
    this.#change("connecting");
  }

  #failed(why: CallError): void {
    const wait = Math.min(backoff.first * backoff.factor ** this.#failures++, backoff.max);
    this.#due = performance.now() + wait * (1 + backoff.jitter * (2 * Math.random() - 1));
    this.#why = why.message;
    this.#change("failed");
  }

  #tryToConnect(): void {
    try {
      this.#connect();
    } catch (e) {
      this.#failed(new CallError(Code.unavailable, String(e))); // of the class of WebSockets
    }
  }

  /** The network has changed: what failed before may work now, and what worked may have ended. */
  networkChanged(): void {
    this.#due = 0;
    this.#stay();
    for (const s of this.#sockets) s.probe();
  }

  /**
   * Takes the calls of the server from now on, and stays connected for them. The current session
   * finishes its calls and takes no more, because it may have told the server that it serves none.
   */
  serve(accept: NonNullable<SocketOptions["accept"]>): void {
    if (this.#state === "closed") throw new TypeError("the transport was closed");
    this.#accept(accept);
  }

  /** Takes no more calls by accept, unless another one has replaced it. */
  unserve(accept: NonNullable<SocketOptions["accept"]>): void {
    if (this.#options.accept === accept) this.#accept(undefined);
  }

  #accept(accept: SocketOptions["accept"]): void {
    this.#options.accept = accept;
    this.#current?.session?.drain();
    this.#stay();
  }

  /** Connects, when that is due, if the server may want to make calls. */
  #stay(): void {
    clearTimeout(this.#retry);
    if (!this.#options.accept || this.#current || this.#suspended || this.#state === "closed") return;
    this.#retry = setTimeout(
      () => {
        if (this.dueIn <= 0 && !this.#current) this.#tryToConnect();
        this.#stay();
      },
      Math.max(this.dueIn, 0),
    );
  }

  /** Closes what is open until resume is called, and fails calls. */
  suspend(): void {
    this.#suspended = true;
    for (const s of [...this.#sockets]) s.close(suspended());
  }

  resume(): void {
    this.#suspended = false;
    this.networkChanged();
  }

  /** Closes what is open, for ever. */
  close(): void {
    clearTimeout(this.#retry);
    this.#change("closed");
    for (const s of [...this.#sockets]) s.close(closed());
  }
}

function suspended(): CallError {
  return new CallError(Code.unavailable, "the browser has put the page aside");
}

function closed(): CallError {
  return new CallError(Code.cancelled, "the transport was closed");
}
