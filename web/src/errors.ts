import type { Detail } from "./status.ts";
import type { Metadata } from "./wire.ts";

/** gRPC's status codes, as far as a session makes statuses of its own. */
export const Code = {
  cancelled: 1,
  deadlineExceeded: 4,
  resourceExhausted: 8,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
} as const;

/** How a call has failed. */
export class CallError extends Error {
  override name = "CallError";
  readonly code: number;
  details: Detail[] = [];
  trailer: Metadata = [];

  /** No handler has seen the call: it may be made again, on any connection. */
  unprocessed = false;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }

  /** Returns an Unavailable error of a call that no handler has seen. */
  static unprocessed(message: string): CallError {
    const e = new CallError(Code.unavailable, message);
    e.unprocessed = true;
    return e;
  }
}
