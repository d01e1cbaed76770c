package link

// Unprocessed wraps an error to say that the peer's handler never saw the call: it wraps
// [ErrUnprocessed] as well.
type Unprocessed struct {
	Err error

	// Unsent says that nothing of the call was sent, and that the session takes no calls at the moment.
	// So the call can be made again however often that happens.
	Unsent bool
}

// Error implements error.
func (u Unprocessed) Error() string { return u.Err.Error() }

// Unwrap returns the error and ErrUnprocessed.
func (u Unprocessed) Unwrap() []error { return []error{u.Err, ErrUnprocessed} }
