package interop

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var showItems = flag.Bool("items", false, "print a table of items and environments")

// allCases are the cases, by file.
var allCases = slices.Concat(
	startCases, labelsCases, credentialCases, messageCases, cancelCases, contextCases, statusCases, headerCases,
	limitCases, codecCases, compressionCases, statsCases, serverCases, grpcConnCases, retryCases, authzCases,
	fieldCases, endingCases,
)

// TestItems runs every case on every environment and compares the transcripts with the
// oracle's. It also fails if an item has no case, even if -run selects only some.
func TestItems(t *testing.T) {
	for _, gap := range gaps(Items, allCases) {
		t.Error(gap)
	}
	byItem := map[int][]Case{}
	for _, k := range allCases {
		byItem[k.Item] = append(byItem[k.Item], k)
	}
	want := oracleTranscripts(allCases)
	res := &results{counts: map[string]map[int]*result{}}
	for _, env := range environments {
		for name := range env.Differs {
			if !slices.ContainsFunc(allCases, func(k Case) bool { return k.Name == name }) {
				t.Errorf("%s differs in %q, which is no case", env.Name, name)
			}
		}
		t.Run(env.Name, func(t *testing.T) {
			t.Parallel() // most cases wait
			for _, it := range Items {
				t.Run(it.Name(), func(t *testing.T) {
					for _, k := range byItem[it.Number] {
						res.run(t, env, k, want)
					}
				})
			}
		})
	}
	if *showItems {
		t.Cleanup(func() { res.print(byItem) }) // after all environments
	}
}

// gaps returns what is wrong with items and cases: an item out of order, an item without a
// case, a case without an item, and two cases of the same name, which would share a
// transcript.
func gaps(items []Item, cases []Case) []string {
	var out []string
	found := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	listed, covered := map[int]bool{}, map[int]bool{}
	for i, it := range items {
		if it.Number != i+1 {
			found("item %s stands in place %d: %s", it.Name(), i+1, it.Title)
		}
		listed[it.Number] = true
	}
	named := map[string]bool{}
	for _, k := range cases {
		if !listed[k.Item] {
			found("case %q belongs to item %d, which there is not", k.Name, k.Item)
		}
		if key := k.key(); named[key] {
			found("two cases of item %d are called %q", k.Item, k.Name)
		} else {
			named[key] = true
		}
		covered[k.Item] = true
	}
	for _, it := range items {
		if !covered[it.Number] {
			found("no case for item %s: %s", it.Name(), it.Title)
		}
	}
	return out
}

// TestGaps shows that gaps finds each of them.
func TestGaps(t *testing.T) {
	if got := gaps(Items, allCases); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if n := len(Items); n != 44 {
		t.Errorf("%d items, want the 44 of docs/semantics.md", n)
	}
	for i, it := range Items {
		without := slices.DeleteFunc(slices.Clone(allCases), func(k Case) bool { return k.Item == it.Number })
		want := []string{fmt.Sprintf("no case for item %s: %s", it.Name(), it.Title)}
		if got := gaps(Items, without); !slices.Equal(got, want) {
			t.Errorf("without the cases of item %s: %q, want %q", it.Name(), got, want)
		}
		if got := gaps(slices.Delete(slices.Clone(Items), i, i+1), allCases); len(got) == 0 {
			t.Errorf("without item %s itself: no gap", it.Name())
		}
	}
	if got := gaps(Items, nil); len(got) != len(Items) {
		t.Errorf("without any case: %q", got)
	}
	items := []Item{{1, true, "one"}, {2, false, "two"}}
	for _, c := range []struct {
		items []Item
		cases []Case
		want  []string
	}{
		{items, []Case{{Item: 2, Name: "b"}, {Item: 1, Name: "a"}, {Item: 2, Name: "a"}}, nil},
		{items, []Case{{Item: 2, Name: "b"}}, []string{"no case for item 01†: one"}},
		{items, []Case{{Item: 1, Name: "a"}}, []string{"no case for item 02: two"}},
		{items, []Case{{Item: 1, Name: "a"}, {Item: 2, Name: "b"}, {Item: 3, Name: "c"}}, []string{`case "c" belongs to item 3, which there is not`}},
		{items, []Case{{Item: 1, Name: "a"}, {Item: 2, Name: "b"}, {Item: 1, Name: "a"}}, []string{`two cases of item 1 are called "a"`}},
		{items[1:], []Case{{Item: 2, Name: "b"}}, []string{"item 02 stands in place 1: two"}},
	} {
		if got := gaps(c.items, c.cases); !slices.Equal(got, c.want) {
			t.Errorf("%v, %v: %q, want %q", c.items, c.cases, got, c.want)
		}
	}
}

// key identifies a case.
func (k Case) key() string { return fmt.Sprint(k.Item, " ", k.Name) }

// oracleTranscripts returns a function that records a case on the oracle when it is first
// called for it.
func oracleTranscripts(cases []Case) func(Case) Transcript {
	recorded := map[string]func() Transcript{}
	for _, k := range cases {
		recorded[k.key()] = sync.OnceValue(func() Transcript { return k.Record(oracle, 1) })
	}
	return func(k Case) Transcript { return recorded[k.key()]() }
}

// results counts agreeing and disagreeing cases by environment and item.
type results struct {
	mu     sync.Mutex // environments run concurrently
	counts map[string]map[int]*result
}

type result struct{ agree, differ int }

func (r *results) add(env Env, k Case, agrees bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	items := r.counts[env.Name]
	if items == nil {
		items = map[int]*result{}
		r.counts[env.Name] = items
	}
	if items[k.Item] == nil {
		items[k.Item] = &result{}
	}
	if agrees {
		items[k.Item].agree++
	} else {
		items[k.Item].differ++
	}
}

func (r *results) run(t *testing.T, env Env, k Case, expected func(Case) Transcript) {
	t.Run(strings.ReplaceAll(k.Name, " ", "-"), func(t *testing.T) {
		t.Parallel() // cases mostly wait
		if why := env.Differs[k.Name]; why != "" {
			t.Skip(why)
		}
		want, got := expected(k), k.Record(env, 1)
		// On a busy machine a deadline can pass before what it is to end has begun.
		for patience := time.Duration(4); patience <= 16 && got.Skip == "" && (got.Timed || want.Timed) && !slices.Equal(want.Lines, got.Lines); patience *= 4 {
			want, got = k.Record(oracle, patience), k.Record(env, patience)
		}
		if want.Stacks != "" {
			t.Fatalf("the case hangs on the oracle\n%s\n%s", strings.Join(want.Lines, "\n"), want.Stacks)
		}
		if got.Skip != "" {
			t.Skip(got.Skip)
		}
		agrees := slices.Equal(want.Lines, got.Lines)
		// Package http decides some endings by races: one of a few runs must agree.
		for patience := time.Duration(1); !agrees && env.Oracle != nil && patience <= 16; patience *= 2 {
			want, got = k.Record(*env.Oracle, patience), k.Record(env, patience)
			agrees = slices.Equal(want.Lines, got.Lines)
		}
		r.add(env, k, agrees)
		if agrees {
			if testing.Verbose() && env.Name == "grpc-go" {
				t.Logf("\n%s", strings.Join(got.Lines, "\n"))
			}
			return
		}
		t.Errorf("differs from grpc-go (- grpc-go, + %s):\n%s", env.Name, Diff(want.Lines, got.Lines))
		if got.Stacks != "" {
			t.Logf("hung:\n%s", got.Stacks)
		}
	})
}

func (r *results) print(byItem map[int][]Case) {
	w := os.Stdout
	fmt.Fprintf(w, "%-5s %5s", "item", "cases")
	for _, e := range environments {
		fmt.Fprintf(w, "  %s", e.Name)
	}
	fmt.Fprintln(w)
	covered := 0
	for _, it := range Items {
		if len(byItem[it.Number]) > 0 {
			covered++
		}
		fmt.Fprintf(w, "%-5s %5d", it.Name(), len(byItem[it.Number]))
		for _, e := range environments {
			cell := "-"
			if c := r.counts[e.Name][it.Number]; c != nil {
				cell = "ok"
				if c.differ > 0 {
					cell = fmt.Sprintf("%d!", c.differ)
				}
			}
			fmt.Fprintf(w, "  %-*s", len(e.Name), cell)
		}
		fmt.Fprintf(w, "  %s\n", it.Title)
	}
	fmt.Fprintf(w, "%d of %d items have cases; %d cases\n", covered, len(Items), len(allCases))
}
