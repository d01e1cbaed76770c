module github.com/nearcall/nearcall/bench

go 1.26.0

require (
	connectrpc.com/connect/v2 v2.0.2
	github.com/cloudwego/shmipc-go v0.2.0
	github.com/coder/websocket v1.8.14
	github.com/containerd/ttrpc v1.2.10
	github.com/fullstorydev/grpchan v1.1.2
	github.com/google/flatbuffers v25.12.19+incompatible
	github.com/grpc-ecosystem/go-grpc-middleware/v2 v2.3.4
	github.com/nearcall/nearcall v0.0.0
	github.com/nearcall/nearcall/connect v0.0.0
	github.com/nearcall/nearcall/quic v0.0.0
	github.com/quic-go/quic-go v0.65.0
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.72.0
	go.opentelemetry.io/otel v1.47.0
	go.opentelemetry.io/otel/sdk v1.47.0
	go.opentelemetry.io/otel/sdk/metric v1.47.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	storj.io/drpc v1.0.0
)

require (
	github.com/bufbuild/protocompile v0.9.0 // indirect
	github.com/bytedance/gopkg v0.0.0-20220817015305-b879a72dc90f // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/containerd/log v0.1.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-ole/go-ole v1.2.6 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jhump/protoreflect v1.15.6 // indirect
	github.com/nearcall/nearcall/flat v0.0.0
	github.com/power-devops/perfstat v0.0.0-20210106213030-5aafc221ea8c // indirect
	github.com/quic-go/qpack v0.6.0 // indirect
	github.com/shirou/gopsutil/v3 v3.22.1 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	github.com/yusufpapurcu/wmi v1.2.2 // indirect
	github.com/zeebo/errs v1.2.2 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
)

replace github.com/nearcall/nearcall => ../

replace github.com/nearcall/nearcall/quic => ../quic

replace github.com/nearcall/nearcall/flat => ../flat

replace github.com/nearcall/nearcall/connect => ../connect
