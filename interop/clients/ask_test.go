package clients

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/testing/asking"
)

// TestServersOfOthersAreAsked: a client that asks which protocol they speak, in plaintext or within
// TLS, goes on with calls over the same connection.
func TestServersOfOthersAreAsked(t *testing.T) {
	meant(t)
	for name, s := range map[string]struct {
		program func(*testing.T) string // skips the test if there is none
		file    string
	}{
		"grpcio": {func(t *testing.T) string {
			python := os.Getenv(pythonVariable)
			if python == "" {
				t.Skip(noPython)
			}
			return python
		}, "ask_grpcio.py"},
		"grpc-js": {func(t *testing.T) string {
			const modules = "../../web/node_modules"
			for _, needed := range []string{".bin/node", "@grpc/grpc-js"} {
				if _, err := os.Stat(filepath.Join(modules, needed)); err != nil {
					t.Skip("web/node_modules is missing: make web-tools")
				}
			}
			return filepath.Join(modules, ".bin/node")
		}, "../../web/test/grpcjs.ts"},
	} {
		for _, secured := range []bool{false, true} {
			where := map[bool]string{false: "plain", true: "TLS"}[secured]
			t.Run(name+"/"+where, func(t *testing.T) {
				program, args := s.program(t), []string{s.file}
				client := insecure.NewCredentials()
				if secured {
					cert, key, config := keys(t, t.TempDir())
					args, client = append(args, key, cert), credentials.NewTLS(&tls.Config{RootCAs: config.RootCAs})
				}
				askEcho(t, serveWith(t, program, args...), client)
			})
		}
	}
}

// serveWith runs a server until the end of the test, and returns its address.
func serveWith(t *testing.T, program string, args ...string) (address string) {
	cmd := exec.Command(program, args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%s: %v\n%s", program, err, &log)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s gives no port: %v", program, err)
	}
	return "localhost:" + strings.TrimSpace(line)
}

// askEcho asks the server at address, and calls it over the same connection.
func askEcho(t *testing.T, address string, creds credentials.TransportCredentials) {
	asks, answers := asking.With(creds)
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(asks))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 200 {
		sent, got := wrapperspb.Bytes(make([]byte, i*i*10)), new(wrapperspb.BytesValue)
		if err := conn.Invoke(ctx, "/ask.Echo/Echo", sent, got); err != nil || len(got.Value) != len(sent.Value) {
			t.Fatalf("call %d: %d bytes, %v", i, len(got.Value), err)
		}
	}
	if a := <-answers; a.Native || a.Err != nil || len(answers) > 0 {
		t.Errorf("the first of %d answers is %+v", len(answers)+1, a)
	}
}
