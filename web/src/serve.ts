import { create, type DescMethod, type DescService, fromBinary, type Message, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createHandlerContext,
  createServiceImplSpec,
  type Interceptor,
  type MethodImplSpec,
  type ServiceImpl,
  type Transport,
} from "@connectrpc/connect";
import { transformInvokeImplementation } from "@connectrpc/connect/protocol";
import type { Call } from "./call.ts";
import { connections } from "./connections.ts";
import { abort, lazyContext, type Parts, urlOf } from "./context.ts";
import { toCallError, toConnectError } from "./convert.ts";
import { CallError } from "./errors.ts";
import { toHeaders, toMetadata } from "./metadata.ts";
import { type Detail, writeStatus } from "./status.ts";
import { maxTimer } from "./timer.ts";
import { type CallHead, type End, plainEnd, Reset, sizeOfEnd, sizeOfMetadata } from "./wire.ts";

/** Adds services to a page. */
export interface Router {
  /** Serves the methods of impl; others are Unimplemented. */
  service<S extends DescService>(service: S, impl: Partial<ServiceImpl<S>>): Router;
}

/** Options of {@link serve}. */
export interface ServeOptions {
  /** Interceptors that run around every call of a handler, the first one outermost. */
  interceptors?: Interceptor[];
}

/**
 * Serves the calls that the server makes to this page. The server's handlers make them with
 * nearcall.PeerConn, over the connection on which a call of the page has arrived. The page's
 * handlers are written as for connect-es.
 *
 * serve keeps the transport connected, and connects it again when the connection is lost. A
 * transport serves one set of services at a time. The returned function stops serving them.
 */
export function serve(transport: Transport, routes: (router: Router) => void, options: ServeOptions = {}): () => void {
  const connection = connections.get(transport);
  if (!connection) throw new TypeError("serve needs a transport of createNearcallTransport");
  const methods = new Map<string, MethodImplSpec>();
  const router: Router = {
    service(service, impl) {
      for (const spec of Object.values(createServiceImplSpec(service, impl).methods))
        methods.set(pathOf(spec.method), spec);
      return router;
    },
  };
  routes(router);
  const accept = (call: Call) => handle(call, methods, options.interceptors ?? []);
  connection.serve(accept);
  return () => connection.unserve(accept);
}

function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** Says in gRPC's words what is wrong with the name of a method. */
function unknown(name: string, methods: Map<string, MethodImplSpec>): string {
  const slash = name.lastIndexOf("/");
  const quoted = (s: string) => (s.length > 256 ? `${s.slice(0, 256)}...` : s);
  if (name[0] !== "/" || slash === 0) return `malformed method name: "${quoted(name)}"`;
  const service = name.slice(1, slash);
  for (const known of methods.keys())
    if (known.startsWith(name.slice(0, slash + 1)))
      return `unknown method ${quoted(name.slice(slash + 1))} for service ${service}`;
  return `unknown service ${quoted(service)}`;
}

async function handle(call: Call, methods: Map<string, MethodImplSpec>, interceptors: Interceptor[]): Promise<void> {
  const head = call.head as CallHead;
  const spec = methods.get(head.method);
  if (!spec) return end(call, new ConnectError(unknown(head.method, methods), Code.Unimplemented));
  if (spec.kind === "unary" && interceptors.length === 0 && head.timeout === 0) return answer(call, head, spec);
  const { method } = spec;
  const context = createHandlerContext({
    service: method.parent,
    method,
    protocolName: "grpc",
    requestMethod: "POST",
    url: urlOf(head),
    ...(head.timeout > 0 && head.timeout / 1000 < maxTimer ? { timeoutMs: head.timeout / 1000 } : {}),
    requestHeader: toHeaders(head.metadata),
  });
  call.onOver = () => {
    if (call.error) context.abort(toConnectError(call.error));
  };
  // At the deadline the call ends as in gRPC: its caller gets a reset, and the handler's waits end
  // even if the caller is silent.
  context.signal.addEventListener("abort", () => call.abandon(Reset.deadline, toCallError(context.signal.reason)));
  let failure: ConnectError | undefined;
  try {
    const replies = transformInvokeImplementation(spec as never, context, interceptors)(requests(call, method));
    for await (const reply of replies) {
      if (call.over) break;
      sendHeader(call, context.responseHeader);
      await call.send(toBinary(method.output, reply as Message));
    }
    if (!call.over) sendHeader(call, context.responseHeader);
  } catch (e) {
    failure = ConnectError.from(e, Code.Unknown);
  }
  end(call, failure, context.responseTrailer);
  context.abort(ended);
}

/** The reason with which a handler's signal is aborted after its call. The default reason takes long to make. */
const ended = new ConnectError("the call has ended", Code.Canceled);

/** Handles a unary call that has no timeout and meets no interceptors. */
async function answer(call: Call, head: CallHead, spec: MethodImplSpec & { kind: "unary" }): Promise<void> {
  const { method } = spec;
  const parts: Parts = {};
  call.onOver = () => {
    if (call.error) abort(parts, toConnectError(call.error));
  };
  let failure: ConnectError | undefined;
  try {
    const reply = await spec.impl(await single(requests(call, method)), lazyContext(method, head, parts));
    const message = toBinary(method.output, create(method.output, reply));
    sendHeader(call, parts.header);
    await call.send(message);
  } catch (e) {
    failure = ConnectError.from(e, Code.Unknown);
  }
  end(call, failure, parts.trailer);
  abort(parts, ended);
}

/** Returns the only message of a unary call. */
async function single(input: AsyncGenerator<Message>): Promise<Message> {
  const { value, done } = await input.next();
  if (done || !(await input.next()).done)
    throw new ConnectError("protocol error: a unary call has one message", Code.Unimplemented);
  return value;
}

async function* requests(call: Call, method: DescMethod): AsyncGenerator<Message> {
  try {
    for (let m = await call.receive(); m !== undefined; m = await call.receive()) yield fromBinary(method.input, m);
  } catch (e) {
    throw e instanceof CallError
      ? toConnectError(e)
      : new ConnectError(`a message cannot be decoded: ${e}`, Code.Internal);
  }
}

function sendHeader(call: Call, header: Headers | undefined): void {
  const metadata = header ? toMetadata(header) : [];
  if (sizeOfMetadata(metadata) > call.session.peer.block)
    throw new ConnectError("the header is larger than its receiver takes", Code.Internal);
  call.sendHeader(metadata);
}

function end(call: Call, failure?: ConnectError, trailer?: Headers): void {
  let e: End;
  try {
    e = endOf(failure, trailer);
    if (sizeOfEnd(e) > call.session.peer.block)
      e = plainEnd(Code.Internal, "the trailer is larger than its receiver takes");
  } catch (why) {
    e = plainEnd(Code.Internal, `the status cannot be sent: ${why}`);
  }
  call.sendEnd(e);
}

/** Returns the end of a call, which has failed if failure is set. It throws if a trailer or a detail cannot be encoded. */
function endOf(failure: ConnectError | undefined, trailer: Headers | undefined): End {
  if (!failure) return trailer ? { ...plainEnd(0, ""), trailer: toMetadata(trailer) } : plainEnd(0, "");
  const details = failure.details.map(detail);
  const all = new Headers(trailer);
  for (const [k, v] of failure.metadata) all.append(k, v);
  return {
    code: failure.code,
    message: failure.rawMessage,
    status: writeStatus(failure.code, failure.rawMessage, details),
    details,
    trailer: toMetadata(all),
  };
}

function detail(d: ConnectError["details"][number]): Detail {
  return "desc" in d ? { type: d.desc.typeName, value: toBinary(d.desc, create(d.desc, d.value)) } : d;
}
