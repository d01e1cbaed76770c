// Package synctest shows how to test services whose behaviour is a matter of
// time: in a bubble of testing/synctest, where clocks jump ahead as soon as
// everybody waits. Nothing sleeps for real, and times are exact.
//
// It works because a Server and its Client keep their goroutines to
// themselves and end them: make both inside the bubble, and close both inside.
package synctest
