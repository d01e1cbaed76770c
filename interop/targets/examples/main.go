// Command examples moves grpc-go's examples of resolvers and balancers over to nearcall by the commands
// of docs/migrate.md and nothing else, runs them before and after, and compares what they print.
//
// It needs the network, and the ports 50051 to 50055 and 50061.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// version is the version of google.golang.org/grpc/examples, which has no tags.
const version = "v0.0.0-20260825154716-030ee8becb20"

// An example is some programs of one folder.
type example struct {
	folder  string
	servers [][]string // command lines; the first word is the program's folder
	ports   []string   // at which the servers listen
	client  []string
	lasts   time.Duration // when to kill the client; 0 if it ends itself
	xds     bool          // the client asks a control plane
}

var examples = []example{
	{folder: "features/load_balancing", servers: [][]string{{"server"}}, ports: []string{"50051", "50052"}, client: []string{"client"}},
	{folder: "features/name_resolving", servers: [][]string{{"server"}}, ports: []string{"50051"}, client: []string{"client"}},
	{folder: "features/health", servers: [][]string{{"server", "-port=50051", "-sleep=1h"}, {"server", "-port=50052", "-sleep=700ms"}}, ports: []string{"50051", "50052"},
		client: []string{"client"}, lasts: 8 * time.Second},
	{folder: "features/retry", servers: [][]string{{"server"}}, ports: []string{"50052"}, client: []string{"client"}},
	{folder: "features/customloadbalancer", servers: [][]string{{"server"}}, ports: []string{"50050", "50051"}, client: []string{"client"}},
	{folder: "features/dualstack", servers: [][]string{{"server"}}, ports: []string{"50051", "50052", "50053"}, client: []string{"client"}},
	{folder: "features/wait_for_ready", client: []string{"."}},
	{folder: "features/xds", servers: [][]string{{"../../helloworld/greeter_server"}}, ports: []string{"50051"}, client: []string{"client", "-target=xds:///greeter"}, xds: true},
}

func main() {
	log.SetFlags(0)
	root := flag.String("root", "../..", "the checkout of nearcall")
	only := flag.String("only", "", "run the example in this folder alone")
	flag.Parse()
	checkout, err := filepath.Abs(*root)
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		log.Fatal(err)
	}
	failed := run(context.Background(), dir, checkout, *only)
	if failed == nil {
		failed = os.RemoveAll(dir)
	}
	if failed != nil {
		log.Fatalf("%v\nthe programs are in %s", failed, dir)
	}
}

// run moves the examples in dir, and compares those that are wanted.
func run(ctx context.Context, dir, checkout, only string) error {
	before, after := filepath.Join(dir, "before"), filepath.Join(dir, "after")
	from, err := download(ctx)
	if err != nil {
		return err
	}
	for _, to := range []string{before, after} {
		if err := copyExamples(to, from); err != nil {
			return err
		}
	}
	if err := prepare(ctx, before); err != nil {
		return err
	}
	if err := move(ctx, after, checkout); err != nil {
		return err
	}
	different := 0
	for _, e := range examples {
		if only != "" && only != e.folder {
			continue
		}
		if err := e.build(ctx, before, after); err != nil {
			return err
		}
		was, err := e.prints(ctx, before)
		if err != nil {
			return fmt.Errorf("%s, before: %w", e.folder, err)
		}
		is, err := e.prints(ctx, after)
		if err != nil {
			return fmt.Errorf("%s, after: %w", e.folder, err)
		}
		if was != is {
			different++
			fmt.Printf("DIFFERENT %s\n--- before\n%s\n--- after\n%s\n", e.folder, was, is)
			continue
		}
		fmt.Printf("%-20s the same %d lines\n", e.folder, strings.Count(is, "\n")+1)
	}
	if different > 0 {
		return fmt.Errorf("%d examples print something else", different)
	}
	return nil
}

// download returns the folder of the examples in the module cache.
func download(ctx context.Context) (string, error) {
	out, err := command(ctx, os.TempDir(), "go", "mod", "download", "-json", "google.golang.org/grpc/examples@"+version)
	if err != nil {
		return "", err
	}
	var m struct{ Dir string }
	return m.Dir, json.Unmarshal([]byte(out), &m)
}

// copyExamples copies what the examples need.
func copyExamples(to, from string) error {
	paths := []string{"data", "features/proto", "helloworld/helloworld"}
	for _, e := range examples {
		for _, p := range e.programs() {
			paths = append(paths, filepath.Join(e.folder, p))
		}
	}
	for _, p := range paths {
		if err := os.CopyFS(filepath.Join(to, p), os.DirFS(filepath.Join(from, p))); err != nil {
			return err
		}
	}
	_, err := command(context.Background(), to, "chmod", "-R", "u+w", ".")
	return err
}

// prepare makes a module of the copy. The original's requires the modules of other examples, and its parent folder.
func prepare(ctx context.Context, dir string) error {
	grpc, err := command(ctx, ".", "go", "list", "-m", "-f", "{{.Version}}", "google.golang.org/grpc")
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"mod", "init", "google.golang.org/grpc/examples"}, {"get", "google.golang.org/grpc@" + strings.TrimSpace(grpc)}, {"mod", "tidy"}} {
		if _, err := command(ctx, dir, "go", args...); err != nil {
			return err
		}
	}
	return nil
}

// move runs the commands of docs/migrate.md.
func move(ctx context.Context, dir, checkout string) error {
	if err := prepare(ctx, dir); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(checkout, "docs/migrate.md"))
	if err != nil {
		return err
	}
	_, rest, found := strings.Cut(string(text), "```sh\ngo mod edit -replace")
	commands, _, closed := strings.Cut("go mod edit -replace"+rest, "```")
	if !found || !closed {
		return fmt.Errorf("docs/migrate.md has no commands that begin with go mod edit -replace")
	}
	commands = strings.ReplaceAll(commands, "PATH", checkout)
	// The version of goimports is this project's, so that the result does not change with the day.
	tool := fmt.Sprintf("go tool -modfile='%s/tools/lint/go.mod' goimports", checkout)
	commands = strings.ReplaceAll(commands, "go run golang.org/x/tools/cmd/goimports@latest", tool)
	const commit = "git init -q && git add -A && git -c user.name=a -c user.email=a@example.org commit -qm before\n"
	_, err = command(ctx, dir, "bash", "-c", commit+commands) // go vet, the last one, tells whether all is well
	return err
}

// programs returns the folders of e's programs, below its own.
func (e example) programs() (all []string) {
	for _, p := range append(e.servers, e.client) {
		if !slices.Contains(all, p[0]) {
			all = append(all, p[0])
		}
	}
	return all
}

func (e example) binary(program string) string {
	return strings.ReplaceAll(filepath.Join(e.folder, program), "/", "-")
}

func (e example) build(ctx context.Context, dirs ...string) error {
	for _, dir := range dirs {
		for _, p := range e.programs() {
			if _, err := command(ctx, dir, "go", "build", "-o", "bin/"+e.binary(p), "./"+filepath.Join(e.folder, p)); err != nil {
				return err
			}
		}
	}
	return nil
}

// prints returns what e's client prints in some runs. In one run chance may decide that a server gets no call: the
// examples make ten, while connections are made.
func (e example) prints(ctx context.Context, dir string) (string, error) {
	const runs = 3
	var parts [][]string
	for range runs {
		out, err := e.run(ctx, dir)
		if err != nil {
			return "", err
		}
		for i, part := range strings.Split(varying.ReplaceAllString(strings.TrimSpace(out), ""), "\n\n") {
			if i == len(parts) {
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], strings.Split(part, "\n")...)
		}
	}
	var all []string
	for _, lines := range parts {
		slices.Sort(lines)
		all = append(all, strings.Join(slices.Compact(lines), "\n"))
	}
	return strings.Join(all, "\n\n"), nil
}

// run runs e's programs in dir, and returns what the client prints.
func (e example) run(ctx context.Context, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	env := os.Environ()
	if e.xds {
		control, err := serveXDS(ctx, "greeter", "127.0.0.1", 50051)
		if err != nil {
			return "", err
		}
		env = append(env, "GRPC_XDS_BOOTSTRAP_CONFIG="+control)
	}
	start := func(args []string, out *bytes.Buffer) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "bin", e.binary(args[0])), args[1:]...)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, out, out
		return cmd, cmd.Start()
	}
	outputs := make([]bytes.Buffer, len(e.servers)+1)
	var servers []*exec.Cmd
	end := func() {
		for _, s := range servers {
			_ = s.Process.Kill()
			_ = s.Wait()
		}
	}
	defer end()
	for i, args := range e.servers {
		cmd, err := start(args, &outputs[i])
		if err != nil {
			return "", err
		}
		servers = append(servers, cmd)
	}
	for _, port := range e.ports {
		if err := await(ctx, port); err != nil {
			end()
			return "", fmt.Errorf("%w\n%s", err, &outputs[0])
		}
	}
	client := &outputs[len(e.servers)]
	cmd, err := start(e.client, client)
	if err != nil {
		return "", err
	}
	if e.lasts > 0 {
		time.Sleep(e.lasts)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	} else if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("the client: %w\n%s", err, client)
	}
	return client.String(), nil
}

// await waits until something listens at port.
func await(ctx context.Context, port string) error {
	for {
		var err error
		for _, host := range []string{"127.0.0.1", "::1"} {
			var conn net.Conn
			if conn, err = net.Dial("tcp", net.JoinHostPort(host, port)); err == nil {
				return conn.Close()
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens at port %s: %w", port, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// varying is what differs each time: the date and time of package log, and which request reached which server.
var varying = regexp.MustCompile(`(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d |request:\d+`)

// command runs a command in dir, and returns what it prints on its standard output.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out), nil
}
