package interop

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

var showItems = flag.Bool("items", false, "print a table of items and environments")

// allCases are the cases, by file.
var allCases = slices.Concat(
	startCases, credentialCases, messageCases, cancelCases, statusCases, headerCases,
	limitCases, codecCases, statsCases, serverCases,
)

// TestItems runs every case on every environment and compares transcripts with the oracle's.
func TestItems(t *testing.T) {
	byItem := map[int][]Case{}
	for _, k := range allCases {
		byItem[k.Item] = append(byItem[k.Item], k)
	}
	want := oracleTranscripts()
	res := results{}
	for _, env := range environments {
		t.Run(env.Name, func(t *testing.T) {
			for _, it := range Items {
				t.Run(it.Name(), func(t *testing.T) {
					if it.Dagger && len(byItem[it.Number]) == 0 {
						t.Errorf("no case for item %s: %s", it.Name(), it.Title)
					}
					for _, k := range byItem[it.Number] {
						res.run(t, env, k, want)
					}
				})
			}
		})
	}
	if *showItems {
		res.print(byItem)
	}
}

// oracleTranscripts records a case on the oracle, once.
func oracleTranscripts() func(Case) Transcript {
	var mu sync.Mutex
	recorded := map[string]Transcript{}
	return func(k Case) Transcript {
		mu.Lock()
		defer mu.Unlock()
		key := fmt.Sprint(k.Item, k.Name)
		tr, ok := recorded[key]
		if !ok {
			tr = k.Record(oracle)
			recorded[key] = tr
		}
		return tr
	}
}

// results counts agreeing and disagreeing cases by environment and item.
type results map[string]map[int]*result

type result struct{ agree, differ int }

func (r results) run(t *testing.T, env Env, k Case, oracle func(Case) Transcript) {
	t.Run(strings.ReplaceAll(k.Name, " ", "-"), func(t *testing.T) {
		if r[env.Name] == nil {
			r[env.Name] = map[int]*result{}
		}
		if r[env.Name][k.Item] == nil {
			r[env.Name][k.Item] = &result{}
		}
		count := r[env.Name][k.Item]
		want, got := oracle(k), k.Record(env)
		if want.Stacks != "" {
			t.Fatalf("the case hangs on the oracle\n%s\n%s", strings.Join(want.Lines, "\n"), want.Stacks)
		}
		if got.Skip != "" {
			t.Skip(got.Skip)
		}
		if slices.Equal(want.Lines, got.Lines) {
			count.agree++
			if testing.Verbose() && env.Name == "grpc-go" {
				t.Logf("\n%s", strings.Join(got.Lines, "\n"))
			}
			return
		}
		count.differ++
		t.Errorf("differs from grpc-go (- grpc-go, + %s):\n%s", env.Name, diff(want.Lines, got.Lines))
		if got.Stacks != "" {
			t.Logf("hung:\n%s", got.Stacks)
		}
	})
}

// diff lists both transcripts' lines in the order of a longest common subsequence.
func diff(a, b []string) string {
	n := make([][]int, len(a)+1)
	for i := range n {
		n[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				n[i][j] = n[i+1][j+1] + 1
			} else {
				n[i][j] = max(n[i+1][j], n[i][j+1])
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			fmt.Fprintf(&out, "    %s\n", a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && n[i+1][j] >= n[i][j+1]:
			fmt.Fprintf(&out, "  - %s\n", a[i])
			i++
		default:
			fmt.Fprintf(&out, "  + %s\n", b[j])
			j++
		}
	}
	return out.String()
}

func (r results) print(byItem map[int][]Case) {
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
			if c := r[e.Name][it.Number]; c != nil {
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
