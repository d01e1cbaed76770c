package ecosystem

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

func gateway(t *testing.T, run runner, s *shop) http.Handler {
	t.Helper()
	mux := runtime.NewServeMux()
	if err := pb.RegisterShopHandler(t.Context(), mux, grpcConn(run(t, program{register: registerShop(s)}).conn)); err != nil {
		t.Fatal(err)
	}
	return mux
}

func TestGatewayTranslatesHTTP(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		mux := gateway(t, run, &shop{})
		var notes []string
		for _, call := range []struct {
			method, url, body string
			status            int
		}{
			{"GET", "/v1/items/tea?quantity=3", "", http.StatusOK},
			{"POST", "/v1/items", `{"name": "tea", "price": "7", "tags": {"kind": "green"}}`, http.StatusOK},
			{"POST", "/v1/items", `{"price": "7"}`, http.StatusBadRequest},
			{"POST", "/v1/items", `{"price": `, http.StatusBadRequest},
			{"GET", "/v1/items/missing", "", http.StatusNotFound},
			{"GET", `/v1/items/code-"PERMISSION_DENIED"`, "", http.StatusForbidden},
			{"GET", `/v1/items/code-"UNAUTHENTICATED"`, "", http.StatusUnauthorized},
			{"GET", `/v1/items/code-"RESOURCE_EXHAUSTED"`, "", http.StatusTooManyRequests},
			{"GET", `/v1/items/code-"UNIMPLEMENTED"`, "", http.StatusNotImplemented},
			{"GET", `/v1/items/code-"UNAVAILABLE"`, "", http.StatusServiceUnavailable},
			{"GET", `/v1/items/code-"INTERNAL"`, "", http.StatusInternalServerError},
			{"GET", "/v1/items?count=3", "", http.StatusOK},
			{"GET", "/v1/items?count=2&failAfter=closing", "", http.StatusOK},
			{"GET", "/v1/items?failAfter=closing", "", http.StatusTooManyRequests},
			{"POST", "/v1/items:import", `{"price": "7"} {"price": "8"}`, http.StatusOK},
			{"DELETE", "/v1/items/tea", "", http.StatusNotImplemented},
			{"GET", "/v1/nothing", "", http.StatusNotFound},
		} {
			req := httptest.NewRequest(call.method, call.url, strings.NewReader(call.body))
			req.Header.Set("TE", "trailers")
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, req)
			reply := rec.Result()
			body, err := io.ReadAll(reply.Body)
			if err != nil {
				t.Fatal(err)
			}
			if reply.StatusCode != call.status {
				t.Errorf("%s %s is %d, want %d: %s", call.method, call.url, reply.StatusCode, call.status, body)
			}
			notes = append(notes, fmt.Sprintf("%s %s: %d, %v, %s, trailer %v", call.method, call.url, reply.StatusCode,
				headers(reply.Header, "Trailer"), strings.ReplaceAll(string(body), " ", ""),
				headers(reply.Trailer, detailsTrailer, contentTypeTrailer)))
		}
		return notes
	})
}

// The HTTP trailers for the trailers that grpc-go adds itself. See
// TestGatewayPassesTheTrailersOfErrorsOn.
const (
	detailsTrailer     = "Grpc-Trailer-Grpc-Status-Details-Bin"
	contentTypeTrailer = "Grpc-Trailer-Content-Type"
)

// grpc-go adds two trailers that no handler has set: the status's details, and the
// content-type of a call that failed without a header.
func TestGatewayPassesTheTrailersOfErrorsOn(t *testing.T) {
	for name, call := range map[string][2]string{"details": {"GET", "/v1/items/missing"}, "without headers": {"POST", "/v1/items"}} {
		t.Run(name, func(t *testing.T) {
			compare(t, func(t *testing.T, run runner) []string {
				req := httptest.NewRequest(call[0], call[1], strings.NewReader("{}"))
				req.Header.Set("TE", "trailers")
				rec := httptest.NewRecorder()
				gateway(t, run, &shop{}).ServeHTTP(rec, req)
				return []string{fmt.Sprintf("%q", rec.Result().Trailer)}
			})
		})
	}
}

// A gateway that dials itself takes a connection's options.
func TestGatewayThatDialsItself(t *testing.T) {
	srv := nearcall.NewServer()
	defer srv.Stop()
	pb.RegisterShopServer(srv, &shop{})
	conn := srv.Client()
	defer conn.Close()
	mux := runtime.NewServeMux()
	if err := pb.RegisterShopHandlerFromEndpoint(t.Context(), mux, "localhost:1", conn.DialOptions()); err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest("GET", "/v1/items/tea?quantity=3", nil))
	if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), `"300"`) {
		t.Errorf("the gateway answers %d, %s", rec.Code, rec.Body)
	}
}

// headers formats h without the given keys.
func headers(h http.Header, without ...string) string {
	var list []string
	for k, v := range h {
		if !slices.Contains(without, k) {
			list = append(list, fmt.Sprint(k, v))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func TestGatewayPassesHeadersAndTimeoutsOn(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		seen := make(chan metadata.MD, 1)
		mux := gateway(t, run, &shop{seen: seen})
		get := func(url string, header ...string) *httptest.ResponseRecorder {
			req := httptest.NewRequest("GET", url, nil)
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, req)
			return rec
		}
		get("/v1/items/tea", "Authorization", "Bearer x", "Grpc-Metadata-Shop", "mine", "Grpc-Metadata-Raw-Bin", "AAE=", "X-Other", "no")
		var notes []string
		for k, v := range <-seen {
			switch k {
			case ":authority", "user-agent", "grpc-accept-encoding": // depend on the connection
			default:
				notes = append(notes, fmt.Sprintf("%s: %q", k, v))
			}
		}
		slices.Sort(notes)
		rec := get("/v1/items/forever", "Grpc-Timeout", "20m") // which may pass before the handler runs
		if rec.Code != http.StatusGatewayTimeout {
			t.Errorf("after the timeout: %d, %s", rec.Code, rec.Body)
		}
		return notes
	})
}

func TestGatewayStreamsOverHTTP(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		ended := make(chan error, 1)
		srv := httptest.NewServer(gateway(t, run, &shop{ended: ended}))
		defer srv.Close()
		defer srv.Client().CloseIdleConnections()

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/items?count=2&failAfter=never", nil)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		// Both lines arrive while the handler still runs.
		lines := bufio.NewScanner(reply.Body)
		for i := range 2 {
			if want := fmt.Sprintf(`"name":"item %d"`, i); !lines.Scan() || !strings.Contains(lines.Text(), want) {
				t.Fatalf("line %d is %q, %v; want one with %s", i, lines.Text(), lines.Err(), want)
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("the handler ended before its caller left: %v", err)
		default:
		}
		cancel()
		if err := <-ended; err != context.Canceled {
			t.Errorf("when the HTTP client left, the handler's context was %v", err)
		}
	})
}
