package waits

import (
	"testing"

	"github.com/nearcall/nearcall/internal/testing/faulty"
)

// ruleFaults are mistakes in the rules. Each must show in some order of steps.
var ruleFaults = []faulty.Fault{
	{Name: "a reading caller that leaves does not start the timer", File: "roles.go", In: "a unary call",
		Old: "	r.Reader = Nobody\n	return StartIdleTimer\n", New: "	r.Reader = Nobody\n	return 0\n"},
	{Name: "a reading caller that is not parked is not told to stop", File: "roles.go", In: "a unary call",
		Old: "	atomic.StoreUint32(&r.mustStop, 1)\n	return", New: "	if r.Parked {\n		atomic.StoreUint32(&r.mustStop, 1)\n	}\n	return"},
	{Name: "a reading caller that is parked is not interrupted", File: "roles.go", In: "an upload whose window grows",
		Old: "return r.Interrupt()", New: "return 0"},
	{Name: "a reading caller that leaves wakes nobody, although others wait", File: "roles.go", In: "a unary call beside a handler that waits for credit",
		Old: "if r.Waiting > 0 || failed || r.Ended {", New: "if failed || r.Ended {"},
	{Name: "a reading caller that leaves after an error wakes nobody", File: "roles.go", In: "an upload whose connection breaks",
		Old: "if r.Waiting > 0 || failed || r.Ended {", New: "if r.Waiting > 0 || r.Ended {"},
	{Name: "a reading caller that leaves a session that has ended wakes nobody", File: "roles.go", In: "an upload whose connection breaks",
		Old: "if r.Waiting > 0 || failed || r.Ended {", New: "if r.Waiting > 0 || failed {"},
	{Name: "a reading caller does not undo the interruption", File: "roles.go", In: "an upload whose window grows",
		Old: "interrupted = r.Interrupted\n", New: ""},
	{Name: "a caller reads beside the read loop", File: "roles.go", In: "a unary call",
		Old: "CallerMayRead() bool { return r.Reader == Nobody }", New: "CallerMayRead() bool { return true }"},
	{Name: "a goroutine waits although nobody reads", File: "roles.go", In: "an upload whose window grows",
		Old: "	r.Waiting++\n	return r.NeedReader()", New: "	r.Waiting++\n	return 0"},
	{Name: "a goroutine waits while the read loop runs a handler", File: "roles.go", In: "a handler on the read loop that waits for credit",
		Old: "	case Handler:\n		r.Reader = ReadLoop\n		return StartReadLoop\n", New: ""},
	{Name: "the read loop retires although others wait", File: "roles.go", In: "a large unary call of a task",
		Old: "case r.Waiting > 0 || r.Ended:", New: "case r.Ended:"},
	{Name: "the read loop retires although the session has ended", File: "roles.go", In: "an upload whose connection breaks",
		Old: "case r.Waiting > 0 || r.Ended:", New: "case r.Waiting > 0:"},
	{Name: "the read loop runs a handler although others wait", File: "roles.go", In: "a unary call beside a handler that waits for credit",
		Old: "return r.Waiting == 0 && !r.Ended }", New: "return !r.Ended }"},
	{Name: "a batch that is left is not handed over", File: "roles.go", In: "a large unary call",
		Old: "	if left {\n		r.WriteLock = HandedOver\n	}\n", New: ""},
	{Name: "the writer is not woken for a batch that is left", File: "roles.go", In: "a large unary call",
		Old: "if left || lost {", New: "if lost {"},
	{Name: "the writer is not woken after it was handed a batch", File: "roles.go", In: "a large unary call",
		Old: "return r.WriteLock == Called || r.WriteLock == HandedOver", New: "return r.WriteLock == Called"},
	{Name: "two goroutines hold the write lock", File: "roles.go", In: "a large unary call",
		Old: "r.WriteLock >= Taken:", New: "r.WriteLock > Taken:"},
	{Name: "what cannot be written at once is left to nobody", File: "roles.go", In: "an upload over TLS",
		Old: "return r.CallWriter(false), false", New: "return 0, false"},
	{Name: "a writer that was called is not woken", File: "roles.go", In: "a large unary call",
		Old: "if r.WriteLock == Taken && !lost {", New: "if r.WriteLock != Free && !lost {"},
	{Name: "credit is returned when a window is received", File: "windows.go", In: "an upload",
		Old: "return r.Window / 3", New: "return r.Window + 1"},
	{Name: "a receiver does not ask for the rest of a large message", File: "windows.go", In: "a large unary call",
		Old: "	r.Advance += short\n	return short", New: "	return 0"},
	{Name: "an advance is not deducted", File: "windows.go", In: "an upload of messages larger than what may wait",
		Old: "	r.Advance -= early\n", New: ""},
	{Name: "a sender waits although it has credit", File: "windows.go", In: "an upload within the window that is not received",
		Old: "return s.Credit <= int64(s.Backlog)", New: "return s.Credit <= int64(s.Backlog)+64<<10"},
}

// TestNobodyWaitsForWhatHasHappened explores every order of steps of small scenes with the rules as
// they are, and with each fault.
func TestNobodyWaitsForWhatHasHappened(t *testing.T) {
	faulty.Explore(t, []string{"roles.go", "windows.go", "explorer_test.go"}, ruleFaults)
}
