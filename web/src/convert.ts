import { Code, ConnectError } from "@connectrpc/connect";
import type { Call } from "./call.ts";
import { CallError } from "./errors.ts";
import { toHeaders } from "./metadata.ts";

/** Turns the error of a call into one of Connect, with the header and trailer as its metadata. */
export function toConnectError(e: CallError, call?: Call): ConnectError {
  const metadata = toHeaders(e.trailer, toHeaders(call?.header));
  metadata.delete("grpc-status-details-bin"); // err.details has them
  const err = new ConnectError(e.message, e.code in Code ? e.code : Code.Unknown, metadata);
  err.details = e.details;
  return err;
}

/** Turns whatever was thrown into the error of a call. */
export function toCallError(reason: unknown): CallError {
  if (reason instanceof CallError) return reason;
  const e = ConnectError.from(reason, Code.Canceled);
  return new CallError(e.code, e.rawMessage);
}
