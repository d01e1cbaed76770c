package foreign

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// A job is a test on a kind.
type job struct {
	Test
	kind string
	line *line // the line of the table that lists it, or nil
}

// A state is the outcome of a test.
type state string

const (
	pass        state = "pass"
	skip        state = "skip"
	fail        state = "fail"
	race        state = "race"
	panicked    state = "panic"
	hang        state = "hang"
	unsupported state = "unsupported" // it ended because it needs a feature that nearcall does not have
)

// good reports whether the test passed or was skipped.
func (s state) good() bool { return s == pass || s == skip }

// A result is the outcome of a job.
type result struct {
	job
	state state
	note  string // the last line that the test printed
	log   string // the name of the log file
	tries int
	took  time.Duration
}

// A runner runs jobs, each in its own process.
type runner struct {
	dir    string // the copy of the project
	bin    string // the test binaries
	logs   string
	marker string
	limit  time.Duration // for one test
}

// mostTries is how often a test may fail before it counts.
const mostTries = 3

// run runs jobs, procs at a time. It retries unexpected failures at the end, one at a time, but not
// data races, panics and hangs, because a second run may miss them by luck. It calls done with the
// result of each first try.
func (r *runner) run(ctx context.Context, jobs []job, procs int, done func(result)) (results []result) {
	results = make([]result, len(jobs))
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, procs)
	for i, j := range jobs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			results[i] = r.once(ctx, j, 1)
			mu.Lock()
			defer mu.Unlock()
			done(results[i])
		})
	}
	all.Wait()
	for i := range results {
		for res := &results[i]; res.line == nil && res.state == fail && res.tries < mostTries && ctx.Err() == nil; {
			*res = r.once(ctx, res.job, res.tries+1)
		}
	}
	return results
}

// once runs a job and returns its result. try is 1 for the first try.
func (r *runner) once(ctx context.Context, j job, try int) result {
	began := time.Now()
	res := result{job: j, tries: try, log: filepath.Join(r.logs, fmt.Sprintf("%s.%s.%d.log", j.kind, j.id(), try))}
	out, err := r.start(ctx, j)
	res.took = time.Since(began)
	if res.state, res.note = judge(out, err); r.marker != "" && !bytes.Contains(out, []byte(r.marker)) {
		res.state = skip
	}
	if err := os.WriteFile(res.log, out, 0o666); err != nil {
		res.note += " (" + err.Error() + ")"
	}
	return res
}

// start runs the process of a job and returns its output.
func (r *runner) start(ctx context.Context, j job) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "g")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(ctx, r.limit+20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary(j.Suite), "-test.v", "-test.run="+j.Run, "-test.timeout="+r.limit.String())
	cmd.Dir = filepath.Join(r.dir, filepath.FromSlash(j.Suite.Dir))
	cmd.Env = append(os.Environ(), KindVariable+"="+j.kind, "TMPDIR="+tmp, "GRPC_GO_LOG_SEVERITY_LEVEL=info",
		"GORACE=atexit_sleep_ms=10") // the default is a second
	cmd.WaitDelay = time.Second // for a child that outlives the test
	return cmd.CombinedOutput()
}

// Unsupported begins the line that a test prints before it ends because it needs a feature that
// nearcall does not have.
const Unsupported = "nearcall does not have: "

var (
	lacking = regexp.MustCompile(`(?m)^` + Unsupported + `.*`)
	crash   = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)
	said    = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: .*`)
)

// judge returns the state of a test from its output and the error of its process, and a
// remark for the report.
func judge(out []byte, err error) (state, string) {
	has := func(s string) bool { return bytes.Contains(out, []byte(s)) }
	exit, _ := err.(*exec.ExitError)
	switch {
	case err == nil && has("testing: warning: no tests to run"):
		return fail, "the test binary does not have it"
	case err == nil && has("--- SKIP") && !has("    --- PASS"):
		return skip, ""
	case err == nil:
		return pass, ""
	case lacking.Match(out):
		return unsupported, string(lacking.Find(out))
	case has("WARNING: DATA RACE"):
		return race, ""
	case exit == nil || exit.ExitCode() < 0 || has("panic: test timed out"):
		return hang, ""
	case crash.Match(out):
		return panicked, string(crash.Find(out))
	}
	all := said.FindAll(out, -1)
	if len(all) == 0 {
		return fail, ""
	}
	return fail, strings.TrimSpace(string(all[len(all)-1]))
}
