// Runs a bare grpc-js server that answers Version on a unix socket, the yardstick of the daemon's lag:
// `BUN_BE_BUN=1 isulad-ts neighbours_bare.ts SOCKET`, so in the daemon's own engine. Ends with its standard input.
import * as grpc from "@grpc/grpc-js";
import { runtime } from "../src/proto/messages.js";

const { VersionRequest, VersionResponse } = runtime.v1;
const answer = { version: "0.1.0", runtime_name: "bare", runtime_api_version: "v1" };

const version: grpc.MethodDefinition<runtime.v1.VersionRequest, object> = {
  path: "/runtime.v1.RuntimeService/Version",
  requestStream: false,
  responseStream: false,
  requestSerialize: (request) => Buffer.from(VersionRequest.encode(request).finish()),
  requestDeserialize: (bytes) => VersionRequest.decode(bytes),
  responseSerialize: (response) => Buffer.from(VersionResponse.encode(response).finish()),
  responseDeserialize: (bytes) => VersionResponse.decode(bytes),
};

const server = new grpc.Server();
server.addService(
  { Version: version },
  { Version: (_: unknown, done: grpc.sendUnaryData<object>) => done(null, answer) },
);
const credentials = grpc.ServerCredentials.createInsecure();
server.bindAsync(`unix://${process.argv[2]}`, credentials, (error) => {
  if (error !== null) throw error;
  process.stdout.write("ready\n");
});
process.stdin.on("end", () => process.exit()).resume();
