import { Code, ConnectError } from "@connectrpc/connect";
import type { Metadata } from "./wire.ts";

/** Keys that metadata cannot have, because other parts of a call carry their values. */
const reserved = new Set([
  "content-type",
  "user-agent",
  "te",
  "grpc-message-type",
  "grpc-encoding",
  "grpc-message",
  "grpc-status",
  "grpc-timeout",
]);

/** Matches the keys that gRPC allows in metadata. Headers allow more. */
const key = /^[0-9a-z_.-]+$/;

/**
 * Turns headers into metadata. Headers join the values of a key with commas. Values of keys that
 * end in -bin are split again, because each must be decoded from base64. All others stay joined,
 * as gRPC allows.
 */
export function toMetadata(headers: Headers): Metadata {
  const m: Metadata = [];
  for (const [k, v] of headers) {
    if (reserved.has(k)) continue;
    if (!key.test(k))
      throw new ConnectError(
        `the header ${JSON.stringify(k)} cannot be sent: gRPC's keys have letters, digits, "-", "_" and "."`,
        Code.Internal,
      );
    if (!k.endsWith("-bin")) m.push([k, v]);
    else for (const part of v.split(",")) m.push([k, decode(k, part)]);
  }
  return m;
}

/** Decodes base64, with or without padding, of either alphabet. */
function decode(k: string, value: string): string {
  try {
    return atob(value.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    throw new ConnectError(
      `the header ${k} is not base64; encodeBinaryHeader of @connectrpc/connect makes it`,
      Code.Internal,
    );
  }
}

/** Adds metadata to headers. */
export function toHeaders(m: Metadata | undefined, headers = new Headers()): Headers {
  for (const [k, v] of m ?? []) {
    if (reserved.has(k)) continue;
    headers.append(k, k.endsWith("-bin") ? btoa(v).replace(/=+$/, "") : v);
  }
  return headers;
}
