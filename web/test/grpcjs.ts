// A server of grpc-js that answers each call with its request. interop/clients runs it, with the files of a
// key and a certificate for TLS, reads the port from its standard output, and closes its standard input at the end.
import { readFileSync } from "node:fs";
import {
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type ServiceDefinition,
  type sendUnaryData,
} from "@grpc/grpc-js";

const same = (b: Buffer) => b;
const service: ServiceDefinition = {
  Echo: {
    path: "/ask.Echo/Echo",
    requestStream: false,
    responseStream: false,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  },
};
const [key, certificate] = process.argv.slice(2).map((name) => readFileSync(name));
const credentials =
  key && certificate
    ? ServerCredentials.createSsl(null, [{ private_key: key, cert_chain: certificate }])
    : ServerCredentials.createInsecure();

const server = new Server();
server.addService(service, {
  Echo: (call: ServerUnaryCall<Buffer, Buffer>, done: sendUnaryData<Buffer>) => done(null, call.request),
});
server.bindAsync("127.0.0.1:0", credentials, (error, port) => {
  if (error) throw error;
  console.log(port);
});
process.stdin.on("end", () => server.forceShutdown()).resume();
