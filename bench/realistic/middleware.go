package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// A middleware is the stats handlers and interceptors around calls, the same for both stacks.
type middleware struct {
	serverStats  stats.Handler
	clientStats  stats.Handler
	serverUnary  []grpc.UnaryServerInterceptor
	serverStream []grpc.StreamServerInterceptor
	clientUnary  grpc.UnaryClientInterceptor
	clientStream grpc.StreamClientInterceptor
}

const token = "open sesame"

func newMiddleware() middleware {
	// One call in ten is sampled. Spans and metrics are recorded but not exported.
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.1))))
	telemetry := []otelgrpc.Option{
		otelgrpc.WithTracerProvider(tracer),
		otelgrpc.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	}
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	log := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		logger.Log(ctx, slog.Level(level), msg, fields...)
	})
	finished := logging.WithLogOnEvents(logging.FinishCall)
	return middleware{
		serverStats:  otelgrpc.NewServerHandler(telemetry...),
		clientStats:  otelgrpc.NewClientHandler(telemetry...),
		serverUnary:  []grpc.UnaryServerInterceptor{logging.UnaryServerInterceptor(log, finished), auth.UnaryServerInterceptor(authenticate), recovery.UnaryServerInterceptor()},
		serverStream: []grpc.StreamServerInterceptor{logging.StreamServerInterceptor(log, finished), auth.StreamServerInterceptor(authenticate), recovery.StreamServerInterceptor()},
		clientUnary: func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(withToken(ctx), method, req, reply, cc, opts...)
		},
		clientStream: func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(withToken(ctx), desc, cc, method, opts...)
		},
	}
}

func withToken(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "bearer "+token)
}

func authenticate(ctx context.Context) (context.Context, error) {
	got, err := auth.AuthFromMD(ctx, "bearer")
	if err == nil && got != token {
		err = status.Error(codes.Unauthenticated, "unknown token")
	}
	return ctx, err
}
