"""A server of Python's grpcio that answers each call with its request.

ask_test.go runs this file, with the files of a key and a certificate for TLS, reads the port from its
standard output, and closes its standard input at the end.
"""

import sys
from concurrent import futures

import grpc

server = grpc.server(futures.ThreadPoolExecutor(4))
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ask.Echo", {"Echo": echo}),))
if len(sys.argv) > 1:
    pair = tuple(open(name, "rb").read() for name in sys.argv[1:3])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
server.stop(0).wait()
