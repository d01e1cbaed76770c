package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A plan is what to measure.
type plan struct {
	conditions Conditions
	ways       []way
	loads      []string
	warm       time.Duration // time that a load has before it is measured
	lasts      time.Duration // of a measurement
	calls      int           // a second
	seed       uint64
}

// The most that a plan can ask for.
const (
	longest = 10 * time.Minute
	busiest = 5000 // calls a second
)

// chooseLink sets the conditions: the round trip, percent of packets that are lost, Mbit a
// second, and how much the queue holds, by the time that the link takes for it.
func (p *plan) chooseLink(roundTrip time.Duration, loss, rate float64, queue time.Duration) error {
	switch {
	case roundTrip < 0 || roundTrip > 10*time.Second:
		return errors.New("-delay must be between 0 and 10s")
	case !(loss >= 0 && loss <= 50):
		return errors.New("-loss must be between 0 and 50 percent")
	case !(rate >= 0.1 && rate <= 10_000):
		return errors.New("-rate must be between 0.1 and 10000 Mbit a second")
	case queue < time.Millisecond || queue > 10*time.Second:
		return errors.New("-queue must be between 1ms and 10s")
	}
	p.conditions = Conditions{Delay: roundTrip / 2, Loss: loss / 100, Rate: rate * 1e6 / 8}
	p.conditions.Queue = max(largest, int(math.Ceil(p.conditions.Rate*queue.Seconds())))
	return nil
}

// chooseLoads sets the loads, the length of a measurement, and the calls a second.
func (p *plan) chooseLoads(names string, lasts time.Duration, calls int) error {
	p.loads = strings.Split(names, ",")
	for _, l := range p.loads {
		if !slices.Contains(loads, l) {
			return fmt.Errorf("-beside %q: there is none but %s", l, strings.Join(loads, ", "))
		}
	}
	if lasts <= 0 || lasts > longest {
		return fmt.Errorf("-duration must be more than 0 and at most %v", longest)
	}
	if calls < 1 || calls > busiest {
		return fmt.Errorf("-calls must be between 1 and %d a second", busiest)
	}
	p.lasts, p.calls = lasts, calls
	return nil
}

// interval returns the time between calls. New connections are a tenth as many as calls,
// because handshakes keep the processors busy.
func (p *plan) interval(load string) time.Duration {
	between := time.Second / time.Duration(p.calls)
	if load == fresh {
		between *= 10
	}
	return between
}

// chooseWays sets the ways: the stacks whose names match, each with each congestion control
// that it can have.
func (p *plan) chooseWays(match, congestion string, kernel []string) error {
	re, err := regexp.Compile(match)
	if err != nil {
		return fmt.Errorf("-stacks: %w", err)
	}
	controls := strings.Split(congestion, ",")
	if congestion == "" {
		controls = slices.DeleteFunc([]string{"reno", "cubic", "bbr"}, func(c string) bool { return !slices.Contains(kernel, c) })
	}
	for _, c := range controls {
		if !slices.Contains(kernel, c) {
			return fmt.Errorf("-congestion %q: this kernel offers %s; a module such as tcp_%s may have to be loaded", c, strings.Join(kernel, ", "), c)
		}
	}
	for _, s := range stacks {
		if !re.MatchString(s.name) {
			continue
		}
		own := s.controls
		if own == nil {
			own = controls
		}
		for _, c := range own {
			p.ways = append(p.ways, way{s.name, c})
		}
	}
	if len(p.ways) == 0 {
		return fmt.Errorf("-stacks %q matches none of %s", match, strings.Join(stackNames(), "; "))
	}
	return nil
}

func stackNames() []string {
	var all []string
	for _, s := range stacks {
		all = append(all, s.name)
	}
	return all
}

// A result is a line of the table.
type result struct {
	way
	load string
	measurement
	rate float64 // bytes of the load that arrived in a second
}

// run measures all ways beside all loads.
func (p *plan) run(ctx context.Context, progress io.Writer) ([]result, error) {
	var results []result
	for _, load := range p.loads {
		for _, w := range p.ways {
			r, err := p.measure(ctx, w, load, progress)
			if err != nil {
				return nil, fmt.Errorf("%v, beside %s: %w", w, load, err)
			}
			results = append(results, r)
		}
	}
	return results, nil
}

// measure measures a way in its own network, because the kernel remembers what it has
// learnt about a path.
func (p *plan) measure(ctx context.Context, w way, load string, progress io.Writer) (r result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.warm+p.lasts+2*patience, errors.New("it takes too long"))
	defer cancel()
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	n, err := newNetwork(p.conditions, p.seed, failed)
	if err != nil {
		return r, err
	}
	defer func() {
		if err = errors.Join(err, n.close()); ctx.Err() != nil {
			err = context.Cause(ctx) // the reason of all failures
		}
		if err == nil {
			n.report(progress, fmt.Sprintf("%v, beside %s", w, load))
		}
	}()
	s := setup{Way: w, Address: addresses[0].String() + ":0", Load: load, Warm: p.warm, Lasts: p.lasts, Interval: p.interval(load)}
	server, at, err := startSide(ctx, n.ends[0], s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	s.Address, s.Client = at, true
	client, _, err := startSide(ctx, n.ends[1], s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.Stop()) }()
	receiver := server
	if load == download {
		receiver = client
	}
	r.way, r.load = w, load
	r.measurement, r.rate, err = watch(client, receiver)
	return r, err
}

// report says what has happened to the packets.
func (n *network) report(to io.Writer, of string) {
	for i, where := range [...]string{"server", "client"} {
		l := n.links[i]
		fmt.Fprintf(to, "%s: packets to the %s: %d arrived, at most %v late, %d were lost, %d found the queue full\n",
			of, where, l.passed, l.late.Round(10*time.Microsecond), l.lost, l.dropped)
	}
}

// watch lets the client measure, and returns how many bytes of the load the receiver got in
// a second of that time.
func watch(client, receiver side) (m measurement, rate float64, err error) {
	var none any
	if err = client.ask(asksBegin, &none); err != nil {
		return m, 0, err
	}
	var before, after int64
	if err = receiver.ask(asksReceived, &before); err != nil {
		return m, 0, err
	}
	begun := time.Now()
	if err = client.ask(asksMeasure, &m); err != nil {
		return m, 0, err
	}
	lasted := time.Since(begun)
	err = receiver.ask(asksReceived, &after)
	return m, float64(after-before) / lasted.Seconds(), err
}
