import type { DescMethod } from "@bufbuild/protobuf";
import { type ContextValues, createContextValues, type HandlerContext } from "@connectrpc/connect";
import { toHeaders } from "./metadata.ts";
import type { CallHead } from "./wire.ts";

/** The parts of a context that its handler has asked for. */
export interface Parts {
  values?: ContextValues;
  request?: Headers;
  header?: Headers;
  trailer?: Headers;
  controller?: AbortController;

  /** Why the call has ended. */
  reason?: unknown;
}

const never = () => undefined;

/**
 * Creates the context of a call without a timeout. Headers and signals take longer to make than
 * the rest of a small call, and few handlers use them. So they are made on request.
 */
export function lazyContext(method: DescMethod, head: CallHead, parts: Parts): HandlerContext {
  return {
    service: method.parent,
    method,
    protocolName: "grpc",
    requestMethod: "POST",
    url: urlOf(head),
    timeoutMs: never,
    get values() {
      parts.values ??= createContextValues();
      return parts.values;
    },
    get requestHeader() {
      parts.request ??= toHeaders(head.metadata);
      return parts.request;
    },
    get responseHeader() {
      parts.header ??= new Headers();
      return parts.header;
    },
    get responseTrailer() {
      parts.trailer ??= new Headers();
      return parts.trailer;
    },
    get signal() {
      if (!parts.controller) {
        parts.controller = new AbortController();
        if (parts.reason) parts.controller.abort(parts.reason);
      }
      return parts.controller.signal;
    },
  };
}

/** Aborts the signal of a context, even if the handler asks for the signal only later. */
export function abort(parts: Parts, reason: unknown): void {
  parts.reason ??= reason;
  parts.controller?.abort(reason);
}

/** Returns the URL that a handler's context shows for a call. */
export function urlOf(head: CallHead): string {
  return `nearcall:${head.method}`;
}
