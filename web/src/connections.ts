import type { Transport } from "@connectrpc/connect";
import type { Connection } from "./connection.ts";

/** The connections of transports. */
export const connections = new WeakMap<Transport, Connection>();
