#!/bin/sh
# Runs Connect's conformance tests. It is called by make connect-conformance, in the directory
# interop/connect.
set -eu
go=${GO:-go}
bin=../../bin
mkdir -p $bin/suites
$go build -o $bin/ ./conformanceserver ./conformanceclient

# Servers, with gRPC's code and with Connect's. known-failing.txt says which tests fail, and why, and
# known-flaky.txt which may.
for server in "$bin/conformanceserver" "$bin/conformanceserver -connect"; do
	$go tool connectconformance --conf config.yaml --known-failing @known-failing.txt --known-flaky @known-flaky.txt \
		--mode server -- $server
done

# Connect's code as a client of Connect's servers and of grpc-go's, over HTTP/2. The directory suites
# has what Connect's suites lack.
data=$($go list -m -f '{{.Dir}}' connectrpc.com/conformance)/internal/app/connectconformance/testsuites/data
suites() { printf -- '--test-file %s ' suites/*.yaml "$@"; }
$go tool connectconformance --conf client.yaml $(suites "$data"/*.yaml) --mode client -- $bin/conformanceclient dns:///

# The same client, with nearcall's servers, over TCP, over shared memory, and over HTTP/2, where the server
# takes "json" for protobuf (docs/semantics.md). Without their line "mode" the runner takes the suites for
# clients, and those for servers, as well, but none with raw responses or requests, which are HTTP.
rm -f $bin/suites/*
for suite in $(grep -L 'raw[RQ]' "$data"/*.yaml); do
	sed '/^mode:/d' "$suite" >"$bin/suites/${suite##*/}"
done
both() { $go tool connectconformance --conf client.yaml $(suites $bin/suites/*.yaml) --mode both "$@"; }
for server in "$bin/conformanceserver" "$bin/conformanceserver -connect"; do
	both -- $bin/conformanceclient tcp: ---- $server
	both -- $bin/conformanceclient dns:/// ---- $server
	both --skip '**/Codec:CODEC_JSON/**' -- $bin/conformanceclient grpc: ---- $server
done
