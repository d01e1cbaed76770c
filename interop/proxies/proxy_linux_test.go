package proxies

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	site     = "shop.example" // the host name in the files
	upstream = "127.0.0.1:8080"
	patience = 2 * time.Minute // for whatever a test waits for: beside a busy machine 10 MB take 30 s
)

// A kind is a program that is a proxy.
type kind struct {
	name string
	file string // its configuration

	// configure writes what the program reads. text is the changed file.
	configure func(p *proxy, text string) string
	run       func(p *proxy) []string  // the command that runs it
	reload    func(p *proxy) []string  // the command that makes it read its configuration again
	unix      func(path string) string // the address of a unix socket
}

var nginx = kind{
	name: "nginx", file: "nginx.conf",
	configure: func(p *proxy, text string) string {
		text = p.replace(text, "listen 443 ssl http2;", "listen "+p.https+" ssl http2; listen "+p.http+";")
		text = p.replace(text, "/etc/ssl/shop.example.pem", p.cert.certFile)
		text = p.replace(text, "/etc/ssl/shop.example.key", p.cert.keyFile)
		main := "daemon off;\npid pid;\nworker_processes 1;\nevents {}\nhttp {\naccess_log off;\n"
		if os.Geteuid() == 0 {
			main = "user root;\n" + main // it can enter the test's folder
		}
		for _, module := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			main += module + "_temp_path " + module + ";\n"
		}
		return main + text + "}\n"
	},
	run:    runNginx,
	reload: func(p *proxy) []string { return append(runNginx(p), "-s", "reload") },
	unix:   func(path string) string { return "unix:" + path },
}

func runNginx(p *proxy) []string {
	return []string{program("nginx"), "-p", p.dir, "-e", "stderr", "-c", p.config()}
}

var caddy = kind{
	name: "caddy", file: "Caddyfile",
	configure: func(p *proxy, text string) string {
		_, port, _ := strings.Cut(p.https, ":")
		plain := p.replace(text, site+" {", "http://"+p.http+" {\n\tbind "+p.ip)
		secure := p.replace(text, site+" {", fmt.Sprintf("https://%s:%s, https://localhost:%[2]s {\n\tbind %s\n\ttls %s %s",
			site, port, p.ip, p.cert.certFile, p.cert.keyFile))
		return "{\n\tadmin unix/" + p.dir + "/admin\n\tauto_https off\n\tskip_install_trust\n}\n" + plain + secure
	},
	run: func(p *proxy) []string {
		return []string{program("caddy"), "run", "--adapter", "caddyfile", "--config", p.config()}
	},
	reload: func(p *proxy) []string {
		return []string{program("caddy"), "reload", "--force", "--adapter", "caddyfile", "--config", p.config(), "--address", "unix/" + p.dir + "/admin"}
	},
	unix: func(path string) string { return "unix/" + path },
}

// through runs a test with each kind of proxy.
func through(t *testing.T, test func(t *testing.T, k *kind)) {
	t.Parallel()
	for _, k := range []*kind{&nginx, &caddy} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// program returns where a program is. Users other than root need not have /usr/sbin in PATH.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return "/usr/sbin/" + name
}

// A proxy is one that runs.
type proxy struct {
	*kind
	t     *testing.T
	dir   string
	ip    string
	http  string // address
	https string // address, of TLS
	cert  *certificate

	cmd  *exec.Cmd
	life *os.File // while it is open the program runs
	ends chan struct{}
}

// start starts a proxy in front of the server at address. Each change is a text of the
// proxy's file and what comes in its place. The proxy is killed at the end of the test.
func (k *kind) start(t *testing.T, address string, changes ...string) *proxy {
	t.Helper()
	if _, err := exec.LookPath(program(k.name)); err != nil {
		t.Skipf("%s is not installed: make proxies installs it and runs this test", k.name)
	}
	dir, err := os.MkdirTemp("", k.name) // shorter than t.TempDir: the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &proxy{kind: k, t: t, dir: dir, cert: newCertificate(t, dir)}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
		if log, err := os.ReadFile(p.log()); err == nil && t.Failed() {
			t.Logf("%s's log:\n%s", k.name, log)
		}
	})
	for try := 1; ; try++ {
		p.ip = ownIP()
		p.http, p.https = freeAddress(t, p.ip), freeAddress(t, p.ip)
		p.write(address, changes...)
		err := p.begin()
		if err == nil {
			return p
		}
		if try == 3 { // the two ports can be the same
			t.Fatalf("%s does not start: %v", k.name, err)
		}
	}
}

func (p *proxy) config() string { return filepath.Join(p.dir, "config") }
func (p *proxy) log() string    { return filepath.Join(p.dir, "log") }

// write writes the configuration for the server at address.
func (p *proxy) write(address string, changes ...string) {
	p.t.Helper()
	text := p.replace(read(p.t, p.file), upstream, address)
	for i := 0; i < len(changes); i += 2 {
		text = p.replace(text, changes[i], changes[i+1])
	}
	if err := os.WriteFile(p.config(), []byte(p.configure(p, text)), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) replace(text, from, to string) string {
	p.t.Helper()
	if strings.Count(text, from) != 1 {
		p.t.Fatalf("%s has %q %d times, want it once", p.file, from, strings.Count(text, from))
	}
	return strings.Replace(text, from, to, 1)
}

// command returns a command whose files are in p.dir.
func (p *proxy) command(args []string) (cmd *exec.Cmd, log *os.File) {
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	cmd = exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir)
	return cmd, log
}

// begin runs the program until kill, or until the test's process ends in any way: then a
// shell finds the end of its input, and kills all processes of its group.
func (p *proxy) begin() error {
	const guard = `("$@"; kill -9 0) & cat >/dev/null; kill -9 0`
	cmd, log := p.command(append([]string{"sh", "-c", guard, "sh"}, p.run(p)...))
	defer log.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, life, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdin = input
	err = cmd.Start()
	_ = input.Close()
	if err != nil {
		_ = life.Close()
		return err
	}
	p.cmd, p.life, p.ends = cmd, life, make(chan struct{})
	go func() {
		defer close(p.ends)
		_ = cmd.Wait() // it is killed
	}()
	for deadline := time.Now().Add(patience); ; {
		err := cmp.Or(reach(p.http), reach(p.https))
		if err == nil {
			return nil
		}
		select {
		case <-p.ends:
			p.kill()
			return fmt.Errorf("it ends: %s", read(p.t, p.log()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.kill()
			return fmt.Errorf("it cannot be reached: %w", err)
		}
	}
}

func reach(address string) error {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// kill kills the program at once, with all of its processes.
func (p *proxy) kill() {
	group := -p.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGKILL)
	<-p.ends
	_ = p.life.Close()
	p.cmd = nil
	for deadline := time.Now().Add(patience); p.runs(-group); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Errorf("a process of %s is left", p.name)
			return
		}
	}
}

// runs reports whether a process of a group runs. One that has ended can still have an entry,
// until the system's first process looks.
func (p *proxy) runs(group int) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		p.t.Error(err)
	}
	for _, file := range stats {
		b, _ := os.ReadFile(file)                                    // it can end now
		after := string(b[strings.LastIndexByte(string(b), ')')+1:]) // the name
		fields := strings.Fields(after)
		if len(fields) > 2 && fields[0] != "Z" && fields[2] == strconv.Itoa(group) {
			return true
		}
	}
	return false
}

// reloads makes the program read its configuration again.
func (p *proxy) reloads() {
	p.t.Helper()
	cmd, log := p.command(p.reload(p))
	defer log.Close()
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("%v: %v", cmd.Args, err)
	}
}

var ownIPs atomic.Uint32

// ownIP returns an address of this machine that nothing else uses. Otherwise another program
// could take the port of one that does not run, and clients would take it for that one.
func ownIP() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid>>8&0x7f, pid&0xff, ownIPs.Add(1)%254+1)
}

// freeAddress returns an address that nothing listens on.
func freeAddress(t *testing.T, ip string) string {
	t.Helper()
	lis, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}
