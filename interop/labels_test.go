package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"testing"

	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/testing/labeltest"
)

// labelsVariable makes servers label the goroutines of handlers.
const labelsVariable = "GRPC_GO_SERVER_GOROUTINE_LABELS"

const labelsCase = "goroutine labels of handlers and of their callers"

// labelsCases belong to item 42. TestLabels runs them in a process with the variable set,
// which grpc-go reads when it starts.
var labelsCases = []Case{
	{42, labelsCase, func(c *C) {
		h := c.Named("handler")
		look := func(who string, ctx context.Context) {
			labels := map[string]string{}
			pprof.ForLabels(ctx, func(k, v string) bool { labels[k] = v; return true })
			h.Note("%s: context %v", who, labels)
			if os.Getenv(labelsVariable) != "" { // otherwise it can have its parent's
				h.Note("%s: goroutine %s", who, labeltest.OfCaller())
			}
		}
		conn := c.Start(Config{
			ServerStats: []stats.Handler{labelledStats{look}},
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				look("interceptor", ctx)
				return handler(ctx, req)
			}},
			Service: &Service{
				Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
					look("unary", ctx)
					return reply("x"), nil
				},
				Duplex: func(s duplexServer) error {
					for {
						if _, err := s.Recv(); err != nil {
							return nil
						}
						look("stream", s.Context())
						if err := s.Send(&pb.StreamingOutputCallResponse{}); err != nil {
							return err
						}
					}
				},
			},
		})
		calls := func(ctx context.Context) {
			_, err := conn.UnaryCall(ctx, request("x"))
			c.Err("unary", err)
			c.Err("unknown", conn.Invoke(ctx, "/grpc.testing.TestService/None", request("x"), &pb.SimpleResponse{}))
			s, err := conn.FullDuplexCall(ctx)
			c.Err("stream", err)
			for range 2 {
				c.Err("send", s.Send(&pb.StreamingOutputCallRequest{}))
				_, err = s.Recv()
				c.Err("recv", err)
			}
			c.Err("close", s.CloseSend())
			_, err = s.Recv()
			c.Err("end", err)
			c.Note("caller: goroutine %s", labeltest.OfCaller())
		}
		calls(c.Context())
		pprof.Do(c.Context(), pprof.Labels("caller", "1"), calls)
	}},
}

// labelledStats looks at the contexts of incoming calls.
type labelledStats struct {
	look func(string, context.Context)
}

func (s labelledStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return pprof.WithLabels(ctx, pprof.Labels("connection", "1"))
}
func (s labelledStats) HandleConn(context.Context, stats.ConnStats) {}
func (s labelledStats) HandleRPC(context.Context, stats.RPCStats)   {}
func (s labelledStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	s.look("tag", ctx)
	return ctx
}

// TestLabels compares the labels with grpc-go's in processes that have labels on, and
// checks that grpc-go sets them there.
func TestLabels(t *testing.T) {
	if os.Getenv(labelsVariable) != "" {
		t.Skip("this is such a process")
	}
	for _, value := range []string{"grpc.method=true", "all"} {
		t.Run(value, func(t *testing.T) {
			test := "^TestItems$/./^42$/^" + strings.ReplaceAll(labelsCase, " ", "-") + "$"
			cmd := exec.Command(os.Args[0], "-test.v", "-test.run="+test)
			cmd.Env = append(os.Environ(), labelsVariable+"="+value)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			// The oracle's transcript is in the output.
			label := fmt.Sprintf("%v", map[string]string{"connection": "1", "grpc.method": unaryCall})
			if !strings.Contains(string(out), "unary: context "+label) {
				t.Errorf("grpc-go does not label its handlers with %s\n%s", label, out)
			}
		})
	}
}
