package link

// A Drafter is a Session whose peer reads large messages from memory that both map.
// A message that is built there is sent without a copy.
type Drafter interface {
	// Draft returns n bytes for a message, which are the caller's until it calls end, once. It
	// returns nil if there is no such memory. The message is sent if [Codec.Sized] returns a part of it.
	Draft(n int) (b []byte, end func())
}
