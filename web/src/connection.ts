import { CallError, Code } from "./errors.ts";
import type { Session } from "./session.ts";
import { Socket, type SocketOptions } from "./socket.ts";

/**
 * The state of a connection:
 *
 * - `idle`: no WebSocket is open; the next call opens one.
 * - `connecting`: a WebSocket is being opened, and calls wait for it.
 * - `ready`: the WebSocket takes calls.
 * - `failed`: the last WebSocket could not be opened, or was lost at once; calls fail until the
 *   next attempt is due.
 * - `closed`: its owner has closed it for ever.
 */
export type ConnectionState = "idle" | "connecting" | "ready" | "failed" | "closed";

const backoff = { first: 500, factor: 1.6, max: 30_000, jitter: 0.2 }; // milliseconds

interface Waiting {
  resolve(s: Session): void;
  reject(e: CallError): void;
}

/** Opens WebSockets, one after another, when calls need one or the page serves calls. */
export class Connection {
  readonly #options: SocketOptions;
  readonly #changed: (state: ConnectionState) => void;
  readonly #sockets = new Set<Socket>(); // also those that take no more calls
  #state: ConnectionState = "idle";
  #current: Socket | undefined; // the socket that takes calls, or will when it is open
  #latest: Socket | undefined;
  #waiting: Waiting[] = []; // calls that wait for the current socket
  #failures = 0; // in a row
  #suspended = false;
  #due = 0; // when the next attempt may be made, by performance.now
  #why = ""; // why the last attempt has failed
  #retry: ReturnType<typeof setTimeout> | undefined; // the timer that connects, so that the page can serve

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

  /** How long the next attempt to connect must wait, in milliseconds; 0 or less if it can be made now. */
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
      if (socket !== this.#latest) return; // only the latest socket sets the connection's state
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
      this.#failed(new CallError(Code.unavailable, String(e))); // thrown by the WebSocket constructor
    }
  }

  /** Reacts to a change of the network. Attempts that failed before may succeed now, so the next one need not wait. Open WebSockets may be dead, so each one checks whether its server still answers. */
  networkChanged(): void {
    this.#due = 0;
    this.#stay();
    for (const s of this.#sockets) s.probe();
  }

  /**
   * Serves the server's calls with accept from now on, and stays connected for them. The current
   * session finishes its calls and takes no more, because it may have told the server that the
   * page serves none.
   */
  serve(accept: NonNullable<SocketOptions["accept"]>): void {
    if (this.#state === "closed") throw new TypeError("the transport was closed");
    this.#accept(accept);
  }

  /** Stops serving calls with accept, if no other function has replaced it. */
  unserve(accept: NonNullable<SocketOptions["accept"]>): void {
    if (this.#options.accept === accept) this.#accept(undefined);
  }

  #accept(accept: SocketOptions["accept"]): void {
    this.#options.accept = accept;
    this.#current?.session?.drain();
    this.#stay();
  }

  /** While the page serves calls and is not connected, connects as soon as an attempt is due. */
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

  /** Closes all WebSockets, and fails calls until resume is called. */
  suspend(): void {
    this.#suspended = true;
    for (const s of [...this.#sockets]) s.close(suspended());
  }

  resume(): void {
    this.#suspended = false;
    this.networkChanged();
  }

  /** Closes all WebSockets. No other WebSocket is opened after that. */
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
