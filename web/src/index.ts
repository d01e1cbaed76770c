export type { ConnectionState } from "./connection.ts";
export type { WebSocketClass, WebSocketLike } from "./socket.ts";
export { createNearcallTransport, type NearcallTransport, type NearcallTransportOptions } from "./transport.ts";
