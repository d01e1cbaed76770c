package shm

import (
	"testing"

	"github.com/nearcall/nearcall/internal/testing/faulty"
)

// ringFaults are mistakes in ring.go: a text that occurs in it once, and its replacement.
// Each must show in some interleaving.
var ringFaults = []faulty.Fault{
	{
		Name: "a sender looks whether the receiver sleeps, and publishes then", File: "ring.go",
		Old: "s.tail.Store(s.sent)\n\treturn mustWake(s.asleep, &s.wakeUpFor)",
		New: "wake := mustWake(s.asleep, &s.wakeUpFor)\n\ts.tail.Store(s.sent)\n\treturn wake",
	},
	{
		Name: "a receiver dozes off without a second look", File: "ring.go",
		Old: "n, err := r.ready()\n\tif n > 0 || err != nil {",
		New: "n, err := 0, error(nil)\n\tif n > 0 || err != nil {",
	},
	{
		Name: "a receiver looks for the second time, and publishes then that it sleeps", File: "ring.go",
		Old: "r.sleeps++\n\tr.asleep.Store(r.sleeps)\n\tn, err := r.ready()",
		New: "n, err := r.ready()\n\tr.sleeps++\n\tr.asleep.Store(r.sleeps)",
	},
	{
		Name: "a sender waits for room without a second look", File: "ring.go",
		Old: "room, err := s.room(1)\n\tif err != nil || room > 0 {",
		New: "room, err := 0, error(nil)\n\tif err != nil || room > 0 {",
	},
	{
		Name: "a sender looks for room for the second time, and publishes then that it waits", File: "ring.go",
		Old: "s.waits++\n\ts.wants.Store(s.waits)\n\troom, err := s.room(1)",
		New: "room, err := s.room(1)\n\ts.waits++\n\ts.wants.Store(s.waits)",
	},
	{
		Name: "a receiver looks whether the sender waits, and publishes then what it received", File: "ring.go",
		Old: "r.head.Store(r.received)\n",
		New: "defer r.head.Store(r.received)\n",
	},
	{
		Name: "a receiver publishes what it has received before it has copied that", File: "ring.go",
		Old: "n = copy(b, r.ring[at:])\n",
		New: "r.head.Store(r.received + uint64(len(b)))\n\tn = copy(b, r.ring[at:])\n",
	},
	{
		Name: "a receiver wakes for room before half of the ring is empty, and not afterwards", File: "ring.go",
		Old: "if int(r.sent-r.received) <= len(r.ring)/2 {",
		New: "if int(r.sent-r.received) > len(r.ring)/2 {",
	},
	{
		Name: "a receiver wakes for room when half of the ring is empty, and not when more is", File: "ring.go",
		Old: "if int(r.sent-r.received) <= len(r.ring)/2 {",
		New: "if int(r.sent-r.received) == len(r.ring)/2 {",
	},
	{
		Name: "only one sleep is woken", File: "ring.go",
		Old: "if v&1 == 0 || v == *wakeUpFor {",
		New: "if v&1 == 0 || *wakeUpFor != 0 {",
	},
	{
		Name: "a sleep is woken more than once", File: "ring.go",
		Old: "if v&1 == 0 || v == *wakeUpFor {",
		New: "if v&1 == 0 {",
	},
	{
		Name: "a wake-up that woke nobody is not among those that may have been sent", File: "ring.go",
		Old: "*total > w/2",
		New: "*total > w/4",
	},
	{
		Name: "all sleeps have the same number", File: "ring.go",
		Old: "r.sleeps++\n\tr.asleep.Store(r.sleeps)\n\tn, err := r.ready()",
		New: "r.sleeps = 1\n\tr.asleep.Store(r.sleeps)\n\tn, err := r.ready()",
	},
	{
		Name: "all waits for room have the same number", File: "ring.go",
		Old: "s.waits++\n\ts.wants.Store(s.waits)\n\troom, err := s.room(1)",
		New: "s.waits = 1\n\ts.wants.Store(s.waits)\n\troom, err := s.room(1)",
	},
	{
		Name: "a receiver that does not sleep after all does not say so", File: "ring.go",
		Old: "r.stopSleeping()\n\t\treturn false, err",
		New: "return false, err",
	},
	{
		Name: "a sender that does not wait after all does not say so", File: "ring.go",
		Old: "s.stopWaiting()\n\t\treturn false, err",
		New: "return false, err",
	},
	{
		Name: "a receiver that was woken goes on sleeping, as its word has it", File: "ring.go",
		Old: "func (r *receiver) stopSleeping() {\n\tr.sleeps++\n",
		New: "func (r *receiver) stopSleeping() {\n",
	},
	{
		Name: "a sender that was woken goes on waiting, as its word has it", File: "ring.go",
		Old: "func (s *sender) stopWaiting() {\n\ts.waits++\n",
		New: "func (s *sender) stopWaiting() {\n",
	},
	{
		Name: "a sender takes for empty what it has just filled", File: "ring.go",
		Old: "s.received = head\n\treturn len(s.ring) - int(s.sent-head), nil",
		New: "s.received = head\n\treturn len(s.ring) - int(s.sent-head) + 1, nil",
	},
}

// TestNobodySleepsThroughWhatTheOtherDid runs all interleavings of small scenes with the functions
// of ring.go as they are, and with each fault. No wake-up is lost, and all bytes arrive in order.
func TestNobodySleepsThroughWhatTheOtherDid(t *testing.T) {
	faulty.Explore(t, []string{"ring.go", "norace.go", "explorer_test.go"}, ringFaults)
}
