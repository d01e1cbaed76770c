import { CallError } from "./errors.ts";
import { Keepalive } from "./keepalive.ts";
import { Session, type SessionOptions } from "./session.ts";
import { maxTimer } from "./timer.ts";

/** The subprotocol of the WebSockets. */
export const subprotocol = "nearcall.v1";

/** The part of a WebSocket that this package uses. The WebSockets of browsers and of Node have it. */
export interface WebSocketLike {
  binaryType: string;
  readonly readyState: number;
  onopen: ((e: never) => void) | null;
  onmessage: ((e: MessageEvent) => void) | null;
  onclose: ((e: CloseEvent) => void) | null;
  onerror: ((e: never) => void) | null;
  send(b: Uint8Array<ArrayBuffer>): void;
  close(code?: number, reason?: string): void;
}

/** A class of WebSockets. */
export type WebSocketClass = new (url: string, protocols: string) => WebSocketLike;

export interface SocketOptions extends Pick<SessionOptions, "userAgent" | "maxMessage" | "accept"> {
  url: string;
  WebSocket: WebSocketClass;
  connectTimeoutMs: number;
  keepaliveMs: number;
}

const settled = 1000; // in milliseconds; a WebSocket that ends sooner has failed, because a server does not restart that often
const open = 1; // WebSocket.OPEN
const closing = 1000; // the close code after BYE

/** One WebSocket, and the session over it. */
export class Socket {
  /** Undefined until the WebSocket is open. */
  session: Session | undefined;

  /** Is called when the session takes calls. */
  opened: (session: Session) => void = () => {};

  /**
   * Is called when the session takes no more calls, or when the WebSocket ends before there is a
   * session. It is called before ended, and may be called again later.
   */
  drained: () => void = () => {};

  /**
   * Is called once, when the WebSocket has ended. failed says that the WebSocket ended so early
   * that another one is likely to fail, too.
   */
  ended: (why: CallError, failed: boolean) => void = () => {};

  readonly #options: SocketOptions;
  readonly #ws: WebSocketLike;
  readonly #timer: ReturnType<typeof setTimeout>;
  #keepalive: Keepalive | undefined;
  #openedAt: number | undefined; // by performance.now
  #left = false; // close was called
  #over = false;

  /**
   * Throws the errors of the class of WebSockets, such as a SyntaxError for an invalid URL.
   */
  constructor(options: SocketOptions) {
    const { url, connectTimeoutMs } = options;
    this.#options = options;
    this.#ws = new options.WebSocket(url, subprotocol);
    this.#ws.binaryType = "arraybuffer";
    this.#ws.onopen = () => this.#begin();
    this.#ws.onmessage = (e) => this.#receive(e.data);
    this.#ws.onerror = () => {}; // onclose follows with the same information
    this.#ws.onclose = (e) => this.#closed(`${e.code}${e.reason ? ` ${e.reason}` : ""}`);
    this.#timer = setTimeout(
      () => this.#lose(`cannot connect to ${url}: no answer in ${connectTimeoutMs} ms`),
      Math.min(connectTimeoutMs, maxTimer),
    );
  }

  #begin(): void {
    const { url, userAgent, maxMessage, accept } = this.#options;
    const channel = {
      send: (b: Uint8Array<ArrayBuffer>) => {
        if (this.#ws.readyState === open) this.#ws.send(b);
      },
      close: () => this.#ws.close(closing),
    };
    this.session = new Session(channel, {
      authority: new URL(url).host,
      userAgent,
      maxMessage,
      accept,
      opened: () => this.#opened(),
      drained: () => this.drained(),
      ended: (why) => this.#end(why),
    });
  }

  #opened(): void {
    clearTimeout(this.#timer);
    const session = this.session as Session;
    this.#openedAt = performance.now();
    this.#keepalive = new Keepalive(session, this.#options.keepaliveMs, (why) =>
      this.#lose(`${this.#options.url}: ${why}`),
    );
    this.opened(session);
  }

  #receive(data: unknown): void {
    if (typeof data === "string") this.session?.violated("a text message");
    else this.session?.receive(new Uint8Array(data as ArrayBuffer));
  }

  /** Browsers do not tell a page why a WebSocket could not be opened. */
  #closed(how: string): void {
    const { url } = this.#options;
    const why =
      this.#openedAt !== undefined
        ? `the connection to ${url} was lost, with close code ${how}`
        : `cannot connect to ${url}, with close code ${how}; a browser gives the reason in its console alone. Does a nearcall server listen there, is its certificate trusted, does it allow this page's origin, and do proxies pass WebSockets on?`;
    this.#lose(why);
  }

  #lose(why: string): void {
    this.#ws.close();
    if (this.session) this.session.lost(why);
    else {
      this.drained();
      this.#end(CallError.unprocessed(why));
    }
  }

  #end(why: CallError): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#timer);
    this.#keepalive?.stop();
    const lived = this.#openedAt === undefined ? 0 : performance.now() - this.#openedAt;
    this.ended(why, lived < settled && !this.#left && !this.session?.left);
  }

  /** Finds out whether the server still answers. */
  probe(): void {
    this.#keepalive?.probe();
  }

  /** Closes the WebSocket, and fails its calls. */
  close(why: CallError): void {
    this.#left = true;
    if (this.session) this.session.close(why);
    this.#ws.close(closing);
    this.drained();
    this.#end(why);
  }
}
