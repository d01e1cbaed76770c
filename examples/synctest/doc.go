// Package synctest shows how to test services whose behaviour depends on time: in a bubble of
// testing/synctest, whose clock jumps ahead as soon as all goroutines are blocked. Tests do
// not really sleep, and times are exact.
//
// This works because a Server and its Client start and end their own goroutines. Make and close
// both inside the bubble.
package synctest
