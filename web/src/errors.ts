import type { Detail } from "./status.ts";
import type { Metadata } from "./wire.ts";

/** The gRPC status codes that sessions and connections set themselves. */
export const Code = {
  cancelled: 1,
  deadlineExceeded: 4,
  resourceExhausted: 8,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
} as const;

/** The error of a failed call. */
export class CallError extends Error {
  override name = "CallError";
  readonly code: number;
  details: Detail[] = [];
  trailer: Metadata = [];

  /** Whether the call may be made again, on any connection, because no handler has seen it. */
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
