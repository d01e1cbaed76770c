// The client for Connect's conformance tests, which makes its calls with nearcall's transport.
// connectconformance starts it, writes a ClientCompatRequest for each call to its standard
// input, and reads a ClientCompatResponse for each from its standard output.
//
// The requests have the address of the suite's own server, which speaks only HTTP. The calls
// go to a nearcall server instead: its program is the argument. All use one WebSocket.

import { spawn } from "node:child_process";
import { create, type DescMessage, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { createClient, type Transport } from "@connectrpc/connect";
import { createNearcallTransport, type NearcallTransport } from "../src/index.ts";
import { invoke } from "./call.ts";
import {
  ClientCompatRequestSchema,
  ClientCompatResponseSchema,
} from "./gen/connectrpc/conformance/v1/client_compat_pb.js";
import {
  ServerCompatRequestSchema,
  ServerCompatResponseSchema,
} from "./gen/connectrpc/conformance/v1/server_compat_pb.js";
import { ConformanceService } from "./gen/connectrpc/conformance/v1/service_pb.js";

const program = process.argv[2];
if (!program) throw new Error("the argument must be the program of a server");
const server = spawn(program, { stdio: ["pipe", "pipe", "inherit"] });
process.on("exit", () => server.kill());
process.on("SIGTERM", () => process.exit(1));

server.stdin.end(framed(ServerCompatRequestSchema, create(ServerCompatRequestSchema)));
const first = await messages(server.stdout, ServerCompatResponseSchema).next();
if (first.done) throw new Error("the server has ended");
const url = `ws://${first.value.host}:${first.value.port}/`;

const transports = new Map<number, NearcallTransport>(); // by readMaxBytes

/** Returns a transport that is connected: the tests of deadlines are strict. */
async function connected(readMaxBytes: number): Promise<Transport> {
  let t = transports.get(readMaxBytes);
  if (!t) {
    t = createNearcallTransport({ url, readMaxBytes: readMaxBytes || undefined });
    transports.set(readMaxBytes, t);
    await createClient(ConformanceService, t)
      .unimplemented({})
      .catch(() => {});
  }
  return t;
}

const running = new Set<Promise<void>>();
for await (const request of messages(process.stdin, ClientCompatRequestSchema)) {
  const t = await connected(request.messageReceiveLimit);
  if (running.size === 8) await Promise.race(running); // with more, a busy machine fails tests of deadlines
  const one = invoke(t, request).then((result) => {
    const response = create(ClientCompatResponseSchema, { testName: request.testName, result });
    process.stdout.write(framed(ClientCompatResponseSchema, response));
    running.delete(one);
  });
  running.add(one);
}
await Promise.all(running);
for (const t of transports.values()) t.close();
server.kill();

/** A message behind its length. */
function framed<T extends DescMessage>(schema: T, m: MessageShape<T>): Buffer {
  const b = toBinary(schema, m);
  const size = Buffer.alloc(4);
  size.writeUInt32BE(b.length);
  return Buffer.concat([size, b]);
}

async function* messages<T extends DescMessage>(
  input: AsyncIterable<Uint8Array>,
  schema: T,
): AsyncGenerator<MessageShape<T>> {
  let b = Buffer.alloc(0);
  for await (const chunk of input) {
    b = Buffer.concat([b, chunk]);
    while (b.length >= 4 && b.length - 4 >= b.readUInt32BE()) {
      const end = 4 + b.readUInt32BE();
      yield fromBinary(schema, b.subarray(4, end));
      b = b.subarray(end);
    }
  }
  if (b.length > 0) throw new Error("the input ends within a message");
}
