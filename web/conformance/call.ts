import { create, createRegistry, type DescService } from "@bufbuild/protobuf";
import { type Any, AnySchema, anyUnpack } from "@bufbuild/protobuf/wkt";
import { type CallOptions, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import {
  type ClientCompatRequest,
  type ClientCompatResponse,
  ClientErrorResultSchema,
  type ClientResponseResult,
  ClientResponseResultSchema,
} from "./gen/connectrpc/conformance/v1/client_compat_pb.js";
import { StreamType } from "./gen/connectrpc/conformance/v1/config_pb.js";
import {
  type ConformancePayload,
  ConformancePayloadSchema,
  ConformanceService,
  ErrorSchema,
  file_connectrpc_conformance_v1_service,
  type Header,
  HeaderSchema,
  type UnaryRequest,
} from "./gen/connectrpc/conformance/v1/service_pb.js";

const registry = createRegistry(file_connectrpc_conformance_v1_service);

/**
 * A service with the same methods, which answers with raw responses. They are written as
 * HTTP; the server sends the same by nearcall's protocol, or fails the call with OutOfRange.
 */
const RawResponses: DescService = { ...ConformanceService, typeName: "nearcall.conformance.RawResponses", methods: [] };
RawResponses.methods.push(...ConformanceService.methods.map((m) => ({ ...m, parent: RawResponses })));

// What the methods have in common. A raw response is in all requests in the same place.
type Request = Pick<UnaryRequest, "responseDefinition">;
type Response = { payload?: ConformancePayload };
type Client = Record<string, (input: unknown, options: CallOptions) => Promise<Response> & AsyncIterable<Response>>;

/** Makes the call that a request asks for. It resolves to what came of it, and never rejects. */
export async function invoke(transport: Transport, req: ClientCompatRequest): Promise<ClientCompatResponse["result"]> {
  try {
    const requests = req.requestMessages.map((any) => anyUnpack(any, registry) as Request | undefined);
    const raw = requests.some((m) => m?.responseDefinition?.rawResponse);
    return { case: "response", value: await call(transport, raw ? RawResponses : ConformanceService, req, requests) };
  } catch (e) {
    return { case: "error", value: create(ClientErrorResultSchema, { message: String(e) }) };
  }
}

async function call(
  transport: Transport,
  service: DescService,
  req: ClientCompatRequest,
  requests: unknown[],
): Promise<ClientResponseResult> {
  const method = service.methods.find((m) => m.name === req.method);
  const make = (createClient(service, transport) as unknown as Client)[method?.localName ?? ""];
  if (!method || !make) throw new Error(`there is no method ${req.method}`);

  const result = create(ClientResponseResultSchema);
  const timing = req.cancel?.cancelTiming;
  const controller = new AbortController();
  const cancel = () => controller.abort();
  let ended = false;
  let wake = () => {}; // the input, when a response has come or the call has ended

  function received(m: Response): void {
    result.payloads.push(m.payload ?? create(ConformancePayloadSchema));
    if (timing?.case === "afterNumResponses" && timing.value === result.payloads.length) cancel();
    wake();
  }

  async function* input(): AsyncGenerator<unknown> {
    for (const [i, m] of requests.entries()) {
      await sleep(req.requestDelayMs);
      yield m;
      while (req.streamType === StreamType.FULL_DUPLEX_BIDI_STREAM && result.payloads.length <= i && !ended)
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
    }
    if (timing?.case === "beforeCloseSend") cancel();
    closed();
  }

  function closed(): void {
    if (timing?.case === "afterCloseSendMs") setTimeout(cancel, timing.value);
    else if (req.cancel && !timing?.case) setTimeout(cancel);
  }

  const options: CallOptions = {
    headers: req.requestHeaders.flatMap((h) => h.value.map((v): [string, string] => [h.name, v])),
    signal: controller.signal,
    timeoutMs: req.timeoutMs,
    onHeader: (h) => {
      result.responseHeaders = toProto(h);
    },
    onTrailer: (t) => {
      result.responseTrailers = toProto(t);
    },
  };
  const single = method.methodKind === "unary" || method.methodKind === "server_streaming";
  if (single && requests.length !== 1) throw new Error(`${req.method} takes one request`);
  try {
    const reply = make(single ? requests[0] : input(), options);
    if (single) closed();
    if (method.methodKind === "unary" || method.methodKind === "client_streaming") received(await reply);
    else for await (const m of reply) received(m);
  } catch (e) {
    if (!(e instanceof ConnectError)) throw e;
    result.error = create(ErrorSchema, {
      code: e.code as number,
      message: e.rawMessage,
      details: e.details.map(toAny),
    });
    if (result.responseTrailers.length === 0) result.responseTrailers = toProto(e.metadata);
  } finally {
    ended = true;
    wake();
  }
  return result;
}

function toAny(detail: ConnectError["details"][number]): Any {
  if ("desc" in detail) throw new Error(`${detail.desc.typeName} is a detail that was not received`);
  return create(AnySchema, { typeUrl: `type.googleapis.com/${detail.type}`, value: detail.value });
}

function toProto(headers: Headers): Header[] {
  return [...headers].map(([name, value]) => create(HeaderSchema, { name, value: [value] }));
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
