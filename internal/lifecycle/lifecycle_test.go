package lifecycle

import (
	"testing"

	"github.com/nearcall/nearcall/internal/testing/faulty"
)

// ruleFaults are mistakes in the rules. Each must show in some order of steps.
var ruleFaults = []faulty.Fault{
	{Name: "a side leaves while calls are open", File: "lifecycle.go", In: "a server that stops",
		Old: "case l.calls > 0 || l.state == Opening", New: "case l.state == Opening"},
	{Name: "a side leaves without a drain", File: "lifecycle.go", In: "a server that stops",
		Old: "case l.state == Open && l.drain == Announced:", New: "case false:"},
	{Name: "a side refuses calls as soon as it has announced that", File: "lifecycle.go", In: "a server that stops",
		Old: "	return Announce | SetTimer\n", New: "	return Announce | SetTimer | l.refusePeer()\n"},
	{Name: "a server that drains stays", File: "lifecycle.go", In: "an idle client that takes nothing",
		Old: "	if l.Accepted {\n		do |= l.leave(ErrServerStops)\n", New: "	if false {\n		do |= l.leave(ErrServerStops)\n"},
	{Name: "a client that drains leaves", File: "lifecycle.go", In: "a client that stops accepting",
		Old: "	if l.Accepted {\n		do |= l.leave(ErrServerStops)\n", New: "	if true {\n		do |= l.leave(ErrServerStops)\n"},
	{Name: "a side calls a peer that drains", File: "lifecycle.go", In: "a server that stops",
		Old: "	do := l.RefuseOwn(reason)\n", New: "	do := Task(0)\n"},
	{Name: "a drain before the start is forgotten", File: "lifecycle.go", In: "a server that stops before it starts",
		Old: "	if l.drain == Announced {\n		l.drain = Accepting\n", New: "	if false {\n"},
	{Name: "the last call does not end a side that leaves", File: "lifecycle.go", In: "a server that stops",
		Old: "		l.idleSince = l.Clock.Now()\n	}\n	return l.settle()", New: "		l.idleSince = l.Clock.Now()\n	}\n	return 0"},
	{Name: "the answer does not end a side that leaves", File: "lifecycle.go", In: "a server that stops",
		Old: "	return l.refusePeer() | l.settle()\n}\n\n// PeerDrains", New: "	return l.refusePeer()\n}\n\n// PeerDrains"},
	{Name: "a side that was closed before its start stays", File: "lifecycle.go", In: "sides that retire or close before they start",
		Old: "if lost || l.state == Opening {", New: "if lost {"},
	{Name: "a peer that takes nothing is waited for", File: "lifecycle.go", In: "a client that takes nothing",
		Old: "	if l.state < Closed {\n		l.Takes()\n	}\n", New: ""},
	{Name: "over QUIC a side that has finished does not close", File: "lifecycle.go", In: "a server that stops, over QUIC",
		Old: "	if l.state == Finished {\n		return l.close()\n	}\n", New: ""},
	{Name: "over QUIC a side closes when only its peer has finished", File: "lifecycle.go", In: "a server that stops, over QUIC",
		Old: "	if l.state == Finished {\n		return l.close()", New: "	if l.state < Closed {\n		return l.close()"},
	{Name: "a timer runs after the end", File: "lifecycle.go", In: "a server that stops",
		Old: "	l.state = Closed\n	l.due = [timers]time.Time{}\n", New: "	l.state = Closed\n"},
	{Name: "a late answer is waited for", File: "lifecycle.go", In: "an idle client that takes nothing",
		Old: "	l.set(drainTimer, now, l.Patience)\n	return Announce", New: "	return Announce"},
	{Name: "a drain gives up at once a peer with calls", File: "timers.go", In: "a server that stops",
		Old: "if serving && now.Sub(l.announcedAt) < MaxDraining {", New: "if false {"},
	{Name: "a connection with calls is idle", File: "timers.go", In: "an idle connection",
		Old: "	if l.calls == 0 {\n			left -=", New: "	if true {\n			left -="},
	{Name: "a connection is idle as soon as its call has ended", File: "lifecycle.go", In: "an idle connection",
		Old: "		l.idleSince = l.Clock.Now()\n", New: ""},
	{Name: "the idle time is looked at only once", File: "timers.go", In: "an idle connection",
		Old: "		l.set(idleTimer, now, max(left, leastRecheck))\n", New: ""},
	{Name: "an old connection stays", File: "timers.go", In: "an old connection",
		Old: "return l.announce() | l.leave(ErrOld)", New: "return l.announce()"},
	{Name: "an old connection of HTTP/1.1 is closed while a request is on its way", File: "timers.go", In: "an old connection of HTTP/1.1",
		Old: "if l.OneWay && l.drain == Accepting {", New: "if false {"},
	{Name: "an old connection of HTTP/1.1 is closed after an answer that does not say so", File: "timers.go", In: "an old connection of HTTP/1.1",
		Old: "if l.OneWay && l.drain == Accepting {", New: "if l.OneWay && l.calls == 0 && l.drain == Accepting {"},
	{Name: "the grace does not begin", File: "timers.go", In: "an old connection with a grace",
		Old: "		l.set(graceTimer, now, l.Grace)\n", New: ""},
	{Name: "a peer that is dead stays", File: "timers.go", In: "a peer that is dead",
		Old: "		return Lost\n", New: "		return 0\n"},
	{Name: "a peer that was heard is dead", File: "timers.go", In: "a client that pings",
		Old: "	case k.heard:\n", New: "	case false:\n"},
	{Name: "a PING is sent without a call", File: "timers.go", In: "a client that pings",
		Old: "case !l.Keepalive.WithoutCalls && l.calls == 0:", New: "case false:"},
	{Name: "a PING is sent before the peer allows it", File: "timers.go", In: "a client that pings without calls",
		Old: "now.Before(due) && !k.pingSentAt.IsZero()", New: "false"},
}

// TestAConnectionEndsAsItShould explores every order of steps of small scenes with the rules as they
// are, and with each fault.
func TestAConnectionEndsAsItShould(t *testing.T) {
	faulty.Explore(t, []string{"lifecycle.go", "timers.go", "explorer_test.go"}, ruleFaults)
}
