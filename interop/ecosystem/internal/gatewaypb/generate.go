package gatewaypb

// Needs protoc, protoc-gen-go, protoc-gen-go-grpc, protoc-gen-grpc-gateway and, in $GOOGLEAPIS, a copy of
// github.com/googleapis/googleapis for google/api/annotations.proto.
//go:generate protoc -I. -I$GOOGLEAPIS --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative --grpc-gateway_out=. --grpc-gateway_opt=paths=source_relative shop.proto
