module github.com/nearcall/nearcall/examples/connect

go 1.26.0

require (
	connectrpc.com/connect/v2 v2.0.2
	github.com/nearcall/nearcall v0.0.0
	github.com/nearcall/nearcall/connect v0.0.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
)

replace (
	github.com/nearcall/nearcall => ../../
	github.com/nearcall/nearcall/connect => ../../connect
)
