package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// program is the environment variable that makes the test binary run the program instead of
// tests. The processes that the program starts inherit it.
const program = "NEARCALL_ACTOR_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		main()
		return
	}
	leak.Main(m)
}

// execute runs the program and returns what it prints and its exit code.
func execute(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), program+"=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// The books balance for traders in several processes, over each network.
func TestTheProgramBalances(t *testing.T) {
	nearest := "unix"
	if !needs.HasUnixSockets() {
		nearest = "tcp"
	}
	if runtime.GOOS == "linux" {
		nearest = "shm"
	}
	for name, c := range map[string]struct {
		over string
		args []string
	}{"the nearest": {nearest, nil}, "tcp": {"tcp", []string{"-network", "tcp"}}} {
		t.Run("over="+name, func(t *testing.T) {
			over := c.over
			out, errs, code := execute(t, append(c.args, "-traders", "3", "-orders", "1000")...)
			if code != 0 || errs != "" {
				t.Fatalf("it exits with %d:\n%s%s", code, out, errs)
			}
			if n := strings.Count(out, ", over "+over+": 1000 orders"); n != 3 {
				t.Errorf("%d traders have placed 1000 orders over %s, want 3:\n%s", n, over, out)
			}
			if !regexp.MustCompile(`(?m)^the traders have bought [1-9]\d* and sold as much$`).MatchString(out) {
				t.Errorf("nothing was traded:\n%s", out)
			}
		})
	}
}

func TestTheProgramSaysWhatHasFailed(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-network", "pigeon"}, "pigeon"},
		{[]string{"-trade", "tcp:127.0.0.1:1"}, "Unavailable"},
		{[]string{"-traders", "-1"}, "traders"},
		{[]string{"-orders", "-1"}, "orders"},
	} {
		out, errs, code := execute(t, c.args...)
		if code != 1 || !strings.Contains(errs, c.says) {
			t.Errorf("%v exits with %d and prints\n%s%s", c.args, code, out, errs)
		}
	}
}

// A trader that fails is an error, and not taken for one that traded nothing.
func TestATraderThatFailsIsNoticed(t *testing.T) {
	t.Setenv(program, "1")
	accounts, err := hire(t.Context(), "tcp:127.0.0.1:1", 2, 10)
	if err == nil || !strings.Contains(err.Error(), "trader 1: exit status 1") {
		t.Errorf("the accounts are %v, %v", accounts, err)
	}
}

// balance reports each kind of difference.
func TestBalanceNoticesEachDifference(t *testing.T) {
	type books struct {
		accounts []account
		seen     tape
		totals   *pb.BookTotals
	}
	right := func() *books {
		return &books{
			accounts: []account{
				{Orders: 2, Fills: 1, Ordered: 12, Bought: 5, Cancelled: 7},
				{Orders: 2, Fills: 1, Ordered: 8, Sold: 5, Cancelled: 3},
			},
			seen: tape{trades: 1, quantity: 5, inOrder: true},
			totals: &pb.BookTotals{
				Orders: 4, Filled: 2, Cancelled: 2, Trades: 1,
				OrderedQuantity: 20, BoughtQuantity: 5, SoldQuantity: 5, CancelledQuantity: 10,
			},
		}
	}
	judge := func(b *books) error { return balance(b.accounts, b.seen, b.totals, 2) }
	if err := judge(right()); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*books){
		"an order is missing":          func(b *books) { b.accounts[0].Orders-- },
		"a fill is missing":            func(b *books) { b.accounts[0].Fills-- },
		"a trader has bought more":     func(b *books) { b.accounts[0].Bought++; b.accounts[0].Ordered++ },
		"a trader has sold more":       func(b *books) { b.accounts[1].Sold++; b.accounts[1].Cancelled-- },
		"a trader has lost something":  func(b *books) { b.accounts[1].Cancelled-- },
		"the book has more orders":     func(b *books) { b.totals.Orders++ },
		"the book has more ordered":    func(b *books) { b.totals.OrderedQuantity++ },
		"the book has more bought":     func(b *books) { b.totals.BoughtQuantity++; b.seen.quantity++ },
		"the book has more sold":       func(b *books) { b.totals.SoldQuantity++ },
		"the book has more cancelled":  func(b *books) { b.totals.CancelledQuantity++ },
		"the book has fewer filled":    func(b *books) { b.totals.Filled-- },
		"an order is open":             func(b *books) { b.totals.Open++ },
		"something is open":            func(b *books) { b.totals.OpenQuantity++ },
		"the feed has lost a trade":    func(b *books) { b.seen.trades-- },
		"the feed has lost a quantity": func(b *books) { b.seen.quantity-- },
		"the feed is out of order":     func(b *books) { b.seen.inOrder = false },
	} {
		b := right()
		spoil(b)
		if judge(b) == nil {
			t.Errorf("%s, and it balances", what)
		}
	}
}
