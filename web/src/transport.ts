import type {
  BinaryReadOptions,
  BinaryWriteOptions,
  DescMessage,
  DescMethodStreaming,
  DescMethodUnary,
  MessageInitShape,
  MessageShape,
} from "@bufbuild/protobuf";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ContextValues,
  createContextValues,
  type Interceptor,
  type StreamResponse,
  type Transport,
  type UnaryResponse,
} from "@connectrpc/connect";
import { createMethodUrl, runStreamingCall, runUnaryCall } from "@connectrpc/connect/protocol";
import type { Call } from "./call.ts";
import { Connection, type ConnectionState } from "./connection.ts";
import { connections } from "./connections.ts";
import { toCallError, toConnectError } from "./convert.ts";
import { CallError } from "./errors.ts";
import { toHeaders, toMetadata } from "./metadata.ts";
import { watchNetwork } from "./network.ts";
import type { Session } from "./session.ts";
import type { WebSocketClass } from "./socket.ts";
import { maxTimer } from "./timer.ts";
import { type CallHead, type Metadata, Reset } from "./wire.ts";

/** Options of {@link createNearcallTransport}. */
export interface NearcallTransportOptions {
  /** Where the server takes WebSockets, such as `wss://example.com/calls`. In a page, a path on the page's own host is enough. */
  url: string;

  /** Interceptors that run around every call, as in all transports of Connect. */
  interceptors?: Interceptor[];

  /** The timeout of calls that give none, in milliseconds; none by default. */
  defaultTimeoutMs?: number;

  /** The largest message that is received, in bytes; by default there is no limit. A larger one ends its call with ResourceExhausted. */
  readMaxBytes?: number;

  /** How messages are encoded and decoded. */
  binaryOptions?: Partial<BinaryReadOptions & BinaryWriteOptions>;

  /** The class of WebSockets; the global one by default. */
  WebSocket?: WebSocketClass;

  /** How long connecting may take, in milliseconds; 20,000 by default. */
  connectTimeoutMs?: number;

  /**
   * How long the server may be silent, in milliseconds, while calls are open or the page serves
   * calls. Then a PING asks whether it is still there. The default is 30,000; 0 turns this off.
   * PINGs are sent no more often than the server allows: every five minutes if it sets no
   * `KeepaliveEnforcementPolicy`.
   */
  keepaliveMs?: number;
}

/** A transport whose calls share one WebSocket. */
export interface NearcallTransport extends Transport {
  /** The state of the connection. */
  readonly state: ConnectionState;

  /** Calls listener whenever the state changes, until the returned function is called. */
  onStateChange(listener: (state: ConnectionState) => void): () => void;

  /** Closes the WebSocket. Its calls fail with Canceled, as do later ones. */
  close(): void;
}

const maxAttempts = 5; // of a call that no handler has seen
const pause = 100; // milliseconds, doubled each time: bound of the random wait before a refused call is made again

/**
 * Abandons a call when nothing can receive its messages any more. This is needed because
 * createClient does not tell the transport when a loop over the messages was left with break.
 */
const dropped = new FinalizationRegistry<Call>(drop);

function drop(call: Call): void {
  call.abandon(Reset.cancelled, new CallError(Code.Canceled, "nothing receives it"));
}

/**
 * Creates a transport for the clients of connect-es that makes calls of all four kinds to a
 * nearcall server, over one WebSocket. The first call opens it. When the WebSocket is lost, its
 * calls fail with Unavailable, and the next call opens another one. After a failure, some time
 * must pass before the next attempt. Until then calls fail at once.
 *
 * To end a stream early, abort its `signal`. Leaving `for await` with `break` ends the stream only
 * when the garbage collector finds that nothing receives it.
 */
export function createNearcallTransport(options: NearcallTransportOptions): NearcallTransport {
  const url = new URL(options.url, globalThis.location?.href).href.replace(/^http/, "ws");
  const base = url.replace(/^ws/, "http").replace(/[?#].*$/, "");
  const listeners = new Set<(state: ConnectionState) => void>();
  const connection = new Connection(
    {
      url,
      WebSocket: options.WebSocket ?? (globalThis.WebSocket as unknown as WebSocketClass),
      userAgent: "nearcall-web/0",
      maxMessage: options.readMaxBytes,
      connectTimeoutMs: options.connectTimeoutMs ?? 20_000,
      keepaliveMs: options.keepaliveMs ?? 30_000,
    },
    (state) => {
      for (const listener of [...listeners]) queueMicrotask(() => listener(state)); // a listener that throws stops no others
    },
  );
  const unwatch = watchNetwork(connection);
  const { interceptors, binaryOptions } = options;
  const timeoutOf = (ms = options.defaultTimeoutMs) => (ms !== undefined && ms > 0 && ms < maxTimer ? ms : undefined);

  const transport: NearcallTransport = {
    get state() {
      return connection.state;
    },
    onStateChange(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    close() {
      unwatch();
      connection.close();
    },
    async unary<I extends DescMessage, O extends DescMessage>(
      method: DescMethodUnary<I, O>,
      signal: AbortSignal | undefined,
      timeoutMs: number | undefined,
      header: HeadersInit | undefined,
      message: MessageInitShape<I>,
      contextValues: ContextValues = createContextValues(),
    ): Promise<UnaryResponse<I, O>> {
      timeoutMs = timeoutOf(timeoutMs);
      const deadline = deadlineOf(timeoutMs);
      const next = async (
        message: MessageShape<I>,
        header: Headers | undefined,
        signal?: AbortSignal,
      ): Promise<UnaryResponse<I, O>> => {
        const bytes = toBinary(method.input, message, binaryOptions);
        const metadata = header ? toMetadata(header) : [];
        const [call, reply] = await retried(connection, signal, async (session) => {
          const call = session.open(headOf(method, deadline, metadata), bytes);
          const unlink = link(call, signal);
          try {
            return [call, await only(call)] as const;
          } finally {
            unlink();
          }
        });
        let headers: Headers | undefined; // made on request: making them takes longer than reading a small reply
        let trailers: Headers | undefined;
        return {
          stream: false,
          service: method.parent,
          method,
          get header() {
            headers ??= toHeaders(call.header);
            return headers;
          },
          message: fromBinary(method.output, reply, binaryOptions),
          get trailer() {
            trailers ??= toHeaders(call.end?.trailer);
            return trailers;
          },
        };
      };
      // Only these calls need the signal that runUnaryCall makes: making and aborting one takes as
      // long as the rest of the call.
      if (interceptors?.length || signal || timeoutMs)
        return runUnaryCall<I, O>({
          interceptors,
          signal,
          timeoutMs,
          req: {
            stream: false,
            service: method.parent,
            method,
            requestMethod: "POST",
            url: createMethodUrl(base, method),
            header: new Headers(header),
            contextValues,
            message,
          },
          next: (req) => next(req.message, req.header, req.signal),
        });
      return next(create(method.input, message), header && new Headers(header)).catch((e) => {
        throw ConnectError.from(e);
      });
    },
    async stream<I extends DescMessage, O extends DescMessage>(
      method: DescMethodStreaming<I, O>,
      signal: AbortSignal | undefined,
      timeoutMs: number | undefined,
      header: HeadersInit | undefined,
      input: AsyncIterable<MessageInitShape<I>>,
      contextValues: ContextValues = createContextValues(),
    ): Promise<StreamResponse<I, O>> {
      timeoutMs = timeoutOf(timeoutMs);
      const deadline = deadlineOf(timeoutMs);
      return runStreamingCall<I, O>({
        interceptors,
        signal,
        timeoutMs,
        req: {
          stream: true,
          service: method.parent,
          method,
          requestMethod: "POST",
          url: createMethodUrl(base, method),
          header: new Headers(header),
          contextValues,
          message: input,
        },
        next: async (req) => {
          const metadata = toMetadata(req.header);
          const single =
            method.methodKind === "server_streaming"
              ? toBinary(method.input, await first(req.message), binaryOptions)
              : undefined;
          const call = await retried(connection, req.signal, async (session) => {
            const call = session.open(headOf(method, deadline, metadata), single);
            const unlink = link(call, req.signal);
            call.onOver = unlink;
            if (single) await call.headed; // until something has arrived, the call can be made again
            if (call.error && !call.answered) throw call.error;
            return call;
          });
          if (!single) void sendAll(call, req.message, (m) => toBinary(method.input, m, binaryOptions));
          await call.headed;
          if (call.error && call.header === undefined) throw toConnectError(call.error, call);
          const trailer = new Headers();
          const message = received(call, trailer, (b) => fromBinary(method.output, b, binaryOptions));
          if (!call.over) dropped.register(message, call);
          return { ...req, stream: true, header: toHeaders(call.header), trailer, message };
        },
      });
    },
  };
  connections.set(transport, connection);
  return transport;
}

function deadlineOf(timeoutMs: number | undefined): number | undefined {
  return timeoutMs === undefined ? undefined : performance.now() + timeoutMs;
}

/** Makes a call, and makes it again while no handler has seen it. */
async function retried<T>(
  connection: Connection,
  signal: AbortSignal | undefined,
  make: (s: Session) => Promise<T>,
): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    let session: Session | undefined;
    try {
      signal?.throwIfAborted();
      session = await abortable(connection.session(), signal);
      await slotOf(session, signal);
      if (signal?.aborted || !session.usable) {
        session.release();
        signal?.throwIfAborted();
        throw CallError.unprocessed(session.why?.message ?? "the connection takes no more calls");
      }
      return await make(session);
    } catch (e) {
      if (!(e instanceof CallError)) throw e;
      if (!e.unprocessed || attempt === maxAttempts || connection.dueIn > 0) throw toConnectError(e);
      // The server has refused the call: it may be made again once another has ended.
      if (session?.usable)
        await abortable(Promise.race([session.another(), sleep(pause * 2 ** attempt * Math.random())]), signal);
    }
  }
}

/** Reserves a slot of the session. */
async function slotOf(session: Session, signal: AbortSignal | undefined): Promise<void> {
  const slot = session.slot();
  try {
    await abortable(slot, signal);
  } catch (e) {
    void slot?.then(() => session.release());
    throw e;
  }
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Waits for p, or rejects with the signal's reason. */
async function abortable<T>(p: T | Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!(signal && p instanceof Promise)) return p;
  let abort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(signal.reason);
  });
  signal.addEventListener("abort", abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([p, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

function headOf(
  method: DescMethodUnary | DescMethodStreaming,
  deadline: number | undefined,
  metadata: Metadata,
): Omit<CallHead, "profile"> {
  const timeout = deadline === undefined ? 0 : Math.max(Math.ceil((deadline - performance.now()) * 1000), 1);
  return { method: `/${method.parent.typeName}/${method.name}`, timeout, metadata };
}

/** Abandons the call when the signal is aborted, until the returned function is called. */
function link(call: Call, signal: AbortSignal | undefined): () => void {
  const abort = () => {
    const e = toCallError(signal?.reason);
    call.abandon(e.code === Code.DeadlineExceeded ? Reset.deadline : Reset.cancelled, e);
  };
  if (signal?.aborted) abort();
  else signal?.addEventListener("abort", abort);
  return () => signal?.removeEventListener("abort", abort);
}

/** Receives the one message of a unary call, and its end. */
async function only(call: Call): Promise<Uint8Array> {
  try {
    const m = await call.receive();
    if (m === undefined) throw new ConnectError("protocol error: missing response message", Code.Unimplemented);
    if ((await call.receive()) !== undefined) {
      const e = new ConnectError("protocol error: extra response message", Code.Unimplemented);
      call.abandon(Reset.cancelled, toCallError(e));
      throw e;
    }
    return m;
  } catch (e) {
    throw e instanceof CallError && !e.unprocessed ? toConnectError(e, call) : e;
  }
}

async function first<T>(input: AsyncIterable<T>): Promise<T> {
  const r = await input[Symbol.asyncIterator]().next();
  if (r.done) throw new ConnectError("protocol error: missing request message", Code.Unimplemented);
  return r.value;
}

async function sendAll<T>(call: Call, input: AsyncIterable<T>, encode: (m: T) => Uint8Array): Promise<void> {
  try {
    for await (const m of input) {
      if (call.over) return;
      const written = call.send(encode(m));
      if (written) await written;
    }
    call.halfClose();
  } catch (e) {
    call.abandon(Reset.cancelled, toCallError(e));
  }
}

/** Yields the messages of a call, and then fills trailer. */
async function* received<T>(call: Call, trailer: Headers, decode: (b: Uint8Array) => T): AsyncGenerator<T> {
  try {
    for (let m = await call.receive(); m; m = await call.receive()) yield decode(m);
    toHeaders(call.end?.trailer, trailer);
  } catch (e) {
    if (!(e instanceof CallError)) throw e; // decode has failed
    toHeaders(e.trailer, trailer);
    throw toConnectError(e, call);
  } finally {
    drop(call);
  }
}
