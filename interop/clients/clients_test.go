package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Environment variables that `make clients` sets.
const (
	runVariable    = "NEARCALL_CLIENTS" // not empty if the tests of this package are meant
	pythonVariable = "NEARCALL_PYTHON"  // a Python with the packages of requirements.txt; empty if there is none
)

const noPython = "there is no Python with grpcio"

const serviceName = "nearcall.examples.orders.Orders"

// meant skips a test unless `make clients` runs it: it takes long to build the clients.
func meant(t *testing.T) {
	if os.Getenv(runVariable) == "" {
		t.Skip("make clients runs it")
	}
}

// run returns the output of a command, which must succeed.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, &stdout, &stderr)
	}
	if stderr.Len() > 0 {
		t.Logf("%s", &stderr)
	}
	return stdout.String()
}

// tool returns the program of a tool of this module.
func tool(t *testing.T, name string) string {
	return strings.TrimSpace(run(t, exec.CommandContext(t.Context(), "go", "tool", "-n", name)))
}

// stubs returns a directory with the generated code of orders.proto for python.
func stubs(ctx context.Context, t *testing.T, python string) string {
	dir := t.TempDir()
	protos := filepath.Join("..", "..", "examples", "orders", "orderspb")
	run(t, exec.CommandContext(ctx, python, "-m", "grpc_tools.protoc", "-I", protos,
		"--python_out", dir, "--grpc_python_out", dir, "orders.proto"))
	return dir
}

func TestPythonCallsTheServer(t *testing.T) {
	meant(t)
	python := os.Getenv(pythonVariable)
	if python == "" {
		t.Skip(noPython)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	places, err := json.Marshal(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, python, "-B", "-m", "unittest", "-v", "test_grpcio")
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+stubs(ctx, t, python), "NEARCALL_PLACES="+string(places))
	t.Logf("%s", run(t, cmd))
}

func TestGrpcurlCallsTheServer(t *testing.T) {
	meant(t)
	grpcurl := tool(t, "grpcurl")
	for _, p := range serve(t) {
		t.Run(p.Name, func(t *testing.T) {
			for _, c := range []struct {
				about string
				flags []string
				words []string
				input string
				want  string // in the output
			}{
				{"list", nil, []string{"list"}, "", serviceName + "\n"},
				{"list of methods", nil, []string{"list", serviceName}, "", serviceName + ".Haggle\n"},
				{"describe", nil, []string{"describe", serviceName}, "", "rpc Import ( stream .nearcall.examples.orders.PlaceRequest )"},
				{"unary", []string{"-v", "-H", "x-echo: to and fro"}, []string{serviceName + "/Place"}, `{"item": "tea", "quantity": 2}`, "x-echo: to and fro\n"},
				{"server stream", nil, []string{serviceName + "/List"}, `{"customer": "ann"}`, `"id": "99"`},
				{"client stream", nil, []string{serviceName + "/Import"}, `{} {} {}`, `"placed": 3`},
				{"bidi stream", nil, []string{serviceName + "/Haggle"}, `{"cents": 7} {"cents": 8}`, `"askCents": 8`},
				{"health", nil, []string{"grpc.health.v1.Health/Check"}, `{}`, `"status": "SERVING"`},
			} {
				args := append(p.grpcurl(), c.flags...)
				if c.input != "" {
					args = append(args, "-d", "@")
				}
				args = append(append(args, p.Address), c.words...)
				cmd := exec.CommandContext(t.Context(), grpcurl, args...)
				cmd.Stdin = strings.NewReader(c.input)
				if out := run(t, cmd); !strings.Contains(out, c.want) {
					t.Errorf("%s: want %q in\n%s", c.about, c.want, out)
				}
			}
		})
	}
}

// grpcurl returns the flags with which grpcurl reaches p.
func (p place) grpcurl() []string {
	switch {
	case p.CA != "":
		return []string{"-cacert", p.CA}
	case p.Unix:
		return []string{"-plaintext", "-unix"}
	}
	return []string{"-plaintext"}
}

func TestGhzCallsTheServer(t *testing.T) {
	meant(t)
	const calls = "2000"
	ghz := tool(t, "ghz")
	for _, p := range serve(t) {
		t.Run(p.Name, func(t *testing.T) {
			args := []string{"--call", serviceName + "/Place", "-d", `{"item": "tea", "quantity": 1}`, "-n", calls, "-c", "50", "-O", "json"}
			if p.CA != "" {
				args = append(args, "--cacert", p.CA)
			} else {
				args = append(args, "--insecure")
			}
			address := p.Address
			if p.Unix {
				address = "unix:" + address
			}
			out := run(t, exec.CommandContext(t.Context(), ghz, append(args, address)...))
			var report struct {
				Codes   map[string]int `json:"statusCodeDistribution"`
				Average time.Duration
			}
			if err := json.Unmarshal([]byte(out), &report); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !maps.Equal(report.Codes, map[string]int{"OK": 2000}) {
				t.Errorf("the calls ended with %v, want %s of OK", report.Codes, calls)
			}
			t.Logf("%s calls took %v on average", calls, report.Average)
		})
	}
}
