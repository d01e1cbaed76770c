module github.com/nearcall/nearcall/cmd/nearcall

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/jhump/protoreflect/v2 v2.0.0
	github.com/nearcall/nearcall v0.0.0
	github.com/nearcall/nearcall/quic v0.0.0
	golang.org/x/net v0.61.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/quic-go/quic-go v0.65.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
)

replace github.com/nearcall/nearcall => ../..

replace github.com/nearcall/nearcall/quic => ../../quic
