//go:build linux

package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// killAt is how much memory a server may use, in bytes, before it is killed.
const killAt = 3 << 30

// A pace is how long the parts of a trial take.
type pace struct {
	calls   time.Duration // between the honest client's calls
	look    time.Duration // between looks at the memory of the processes, which can grow by a gigabyte per second
	before  time.Duration // while the honest client is alone
	attack  time.Duration // at most
	quiet   time.Duration // how long the server must be idle to count as done
	settle  time.Duration // at most, for the server to become idle
	release time.Duration // at most, for the server to free memory while the attacker stays connected
	forget  time.Duration // at most, for the server to free memory after the attacker has gone
	stop    time.Duration // at most, for Stop to return
}

var (
	fullPace = pace{
		calls: 2 * time.Millisecond, look: 5 * time.Millisecond, before: 2 * time.Second, attack: time.Minute, quiet: 2 * time.Second, settle: time.Minute,
		release: 2 * time.Minute, forget: 20 * time.Second, stop: 20 * time.Second,
	}
	shortPace = pace{
		calls: 20 * time.Millisecond, look: 10 * time.Millisecond, before: 200 * time.Millisecond, attack: 5 * time.Second, quiet: 300 * time.Millisecond, settle: 30 * time.Second,
		forget: 10 * time.Second, stop: 10 * time.Second,
	}
)

// A result is what a trial has measured. Footprints are the growth since the attack began.
type result struct {
	attack *Attack
	count  int

	sent           int64 // by the attacker, in bytes
	attackerCPU    time.Duration
	attacker       footprint
	note           string
	serverCPU      time.Duration
	server         footprint // the peak
	held           int64     // bytes, after the attack and with the attacker still connected
	kept           int64     // bytes, after the attacker has gone
	died           string    // how; empty if it did not
	busy           bool      // the server did not become idle in time
	stopped        time.Duration
	stuck          bool // Stop did not return
	before, during phase
	newcomer       phase // what a client saw that connected after the attack

	leftOut string // why the attack was left out; empty if it was not
	notMade string // why the attack could not be made; empty if it could

	beyond []string // the bounds that it exceeded, filled in by judge
	timed  int      // how many of them are time bounds
	known  []string // the bounds that it exceeded within its excuse
}

// A trial is one attack with its processes.
type trial struct {
	program                    *Program
	attack                     *Attack
	pace                       pace
	at                         addresses
	server, attacker           *child
	honest                     *client
	watchServer, watchAttacker *watch
	watches                    sync.Once // ends the watches
	r                          *result
	rate                       float64       // of CPU time to real time, that the server uses for the honest client
	perCall                    time.Duration // of CPU time, that the server uses for a call of that client
}

// try makes one attack and measures it.
func (p *Program) try(ctx context.Context, a *Attack, full bool) (*result, error) {
	t := &trial{program: p, attack: a, pace: shortPace, r: &result{attack: a, count: a.Short}}
	if full {
		t.pace, t.r.count = fullPace, a.Full
	}
	t.pace.forget += p.Forget
	dir, err := os.MkdirTemp("", "nearcall-attack-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	defer t.end()
	err = t.start(ctx, dir)
	for _, part := range []func(context.Context) error{t.alone, t.strike, t.leave} {
		if err == nil {
			err = part(ctx)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return t.r, err
}

// start starts the processes.
func (t *trial) start(ctx context.Context, dir string) (err error) {
	if t.server, err = start(ctx, &t.at, t.attack.env, "server", t.attack.Name, dir); err != nil {
		return err
	}
	if t.honest, err = newClient(t.at[t.attack.Path], t.program.Client); err != nil {
		return err
	}
	t.honest.ended.Go(func() { t.honest.run(t.pace.calls) })
	at, err := json.Marshal(t.at)
	if err != nil {
		return err
	}
	t.attacker, err = start(ctx, &struct{}{}, nil, "attacker", t.attack.Name, fmt.Sprint(t.r.count), t.pace.attack.String(), string(at))
	if err != nil {
		return err
	}
	var probed report
	if err := t.attacker.ask("probe", 10*time.Second, &probed); err != nil {
		return fmt.Errorf("%w: %s", err, t.attacker.stderr.String())
	}
	if probed.Error != "" {
		return fmt.Errorf("%s", probed.Error)
	}
	return nil
}

func (t *trial) end() {
	for _, c := range []*child{t.server, t.attacker} {
		if c != nil {
			c.kill()
		}
	}
	if t.honest != nil {
		t.honest.close()
	}
	t.watches.Do(func() {
		for _, w := range []*watch{t.watchServer, t.watchAttacker} {
			if w != nil {
				w.end()
			}
		}
	})
}

// alone measures the honest client without an attack.
func (t *trial) alone(context.Context) error {
	warm := t.pace.before / 2
	time.Sleep(warm)
	t.honest.next()
	begun, cpu := time.Now(), t.cpu(t.server)
	time.Sleep(t.pace.before)
	t.r.before = t.honest.next()
	if t.r.before.Failed > 0 {
		return fmt.Errorf("the honest client before the attack: %s", t.r.before.Failure)
	}
	used := t.cpu(t.server) - cpu
	t.rate = used.Seconds() / time.Since(begun).Seconds()
	t.perCall = used / time.Duration(max(t.r.before.Calls, 1))
	return nil
}

// cpu returns the CPU time of a process so far, or in total if it has ended.
func (t *trial) cpu(c *child) time.Duration {
	d, err := cpuTime(c.pid())
	if err != nil && !c.alive() {
		return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
	}
	return d
}

// strike makes the attack, and measures the server until it has recovered.
func (t *trial) strike(ctx context.Context) error {
	var s settled
	if err := t.server.ask("settle", 10*time.Second, &s); err != nil {
		return fmt.Errorf("the server: %w", err)
	}
	serverBase, err := t.footprint(t.server)
	if err != nil {
		return err
	}
	attackerBase, err := t.footprint(t.attacker)
	if err != nil {
		return err
	}
	t.watchServer, t.watchAttacker = watchOver(t.server, t.pace.look, t.attack.Path == overShm), watchOver(t.attacker, t.pace.look, false)
	serverCPU, attackerCPU := t.cpu(t.server), t.cpu(t.attacker)

	var done report
	if err := t.attacker.ask("go", t.pace.attack+30*time.Second, &done); err != nil {
		return fmt.Errorf("the attacker: %w: %s", err, t.attacker.stderr.String())
	}
	if done.Error != "" && t.server.alive() {
		return fmt.Errorf("the attack could not be made: %s", done.Error)
	}
	t.settle()
	r := t.r
	r.sent, r.note = done.Sent, done.Note
	used := t.cpu(t.server) - serverCPU
	r.attackerCPU = t.cpu(t.attacker) - attackerCPU
	r.during = t.honest.next()
	r.serverCPU = max(used-time.Duration(r.during.Calls)*t.perCall, 0)
	t.awaitCall(&r.during)
	if t.server.alive() {
		r.newcomer = t.newcomer()
	}
	for _, w := range []*watch{t.watchServer, t.watchAttacker} { // because they run now and then
		w.count()
		w.look()
	}
	peak, _ := t.watchServer.most()
	r.server = peak.less(serverBase)
	t.died()
	peak, _ = t.watchAttacker.most()
	peak.descriptors = max(peak.descriptors, done.Descriptors)
	r.attacker = peak.less(attackerBase)
	base := serverBase.private() + s.Shared
	if err := t.until(min(t.attack.release, t.pace.release), base, &r.held); err != nil {
		return err
	}
	if t.attack.stop {
		t.stop()
	}
	t.attacker.leave(5 * time.Second)
	return t.until(t.pace.forget, base, &r.kept)
}

// awaitCall waits for a call of the honest client to end, if none has: the attack may have
// taken less time than a call can.
func (t *trial) awaitCall(p *phase) {
	for begun := time.Now(); p.Calls == 0 && p.Failed == 0 && time.Since(begun) < 2*honestLimit; {
		time.Sleep(20 * time.Millisecond)
		*p = t.honest.next()
	}
}

func (t *trial) footprint(c *child) (footprint, error) {
	f, err := memoryOf(c.pid())
	f.descriptors = descriptorsOf(c.pid())
	return f, err
}

func (f footprint) less(g footprint) footprint {
	return footprint{
		memory:      max(f.memory-g.memory, 0),
		touched:     max(f.touched-g.touched, 0),
		descriptors: max(f.descriptors-g.descriptors, 0),
		threads:     max(f.threads-g.threads, 0),
	}
}

// died records whether the server has died, and how.
func (t *trial) died() {
	_, killed := t.watchServer.most()
	switch {
	case t.r.died != "":
	case killed:
		<-t.server.done
		t.r.died = fmt.Sprintf("killed at %d GB", killAt>>30)
	case !t.server.alive():
		t.r.died = "the process ended: " + firstLine(t.server.stderr.String())
	}
}

// settle waits until the server has used no more CPU time than the honest client causes,
// for t.pace.quiet. On a busy machine a server can seem idle while it waits for a
// processor: such moments do not count.
func (t *trial) settle() {
	const look = 100 * time.Millisecond
	var quiet time.Duration
	last, at := t.cpu(t.server), time.Now()
	for end := time.Now().Add(t.pace.settle); quiet < t.pace.quiet && t.server.alive(); {
		time.Sleep(look)
		waits := runnable(t.server.pid())
		now := time.Now()
		used := t.cpu(t.server)
		rate := (used - last).Seconds() / now.Sub(at).Seconds()
		last, at = used, now
		t.r.busy = rate >= t.rate*1.5+0.1
		switch {
		case t.r.busy:
			quiet = 0
		case !waits:
			quiet += look
		}
		if now.After(end) {
			return
		}
	}
	t.r.busy = false
}

// newcomer returns what a client sees that connects now.
func (t *trial) newcomer() phase {
	c, err := newClient(t.at[t.attack.Path], t.program.Client)
	if err != nil {
		return phase{Failed: 1, Failure: err.Error()}
	}
	defer c.close()
	for range 5 {
		if c.call(); c.last != nil {
			break
		}
	}
	return c.next()
}

// until waits, for at most limit, until the server has freed what it allocated beyond base,
// and records what it has not freed.
func (t *trial) until(limit time.Duration, base int64, have *int64) error {
	for end := time.Now().Add(limit); t.server.alive() && !t.stopped(); {
		var s settled
		if err := t.server.ask("settle", 20*time.Second, &s); err != nil {
			return nil // stop records that the server hangs
		}
		if s.Error != "" {
			return fmt.Errorf("the server: %s", s.Error)
		}
		f, err := memoryOf(t.server.pid())
		if err != nil {
			return nil
		}
		*have = max(f.private()+s.Shared-base, 0)
		if *have <= memoryFloor || time.Now().After(end) {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

func (t *trial) stopped() bool { return t.r.stopped > 0 || t.r.stuck }

// leave stops the server, unless it has been stopped, and records whether it died.
func (t *trial) leave(context.Context) error {
	if t.server.alive() && !t.stopped() {
		t.stop()
	}
	t.died()
	return nil
}

func (t *trial) stop() {
	begun := time.Now()
	var s settled
	if err := t.server.ask("stop", t.pace.stop, &s); err != nil {
		t.r.stuck = true
	}
	t.r.stopped = time.Since(begun)
}
