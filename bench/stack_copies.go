package main

// copying returns a rival that only copies messages, the given number of times in each
// direction.
func copying(name string, times int, note string) Rival {
	return Rival{
		Name: name, Limit: true, Note: note,
		Connect: func(Services) (Conn, error) { return overCopies(times), nil },
		Without: []Absence{{func(r Row) bool { return r.Size < 100<<10 }, "copies are of messages of 100 KB and more"}},
	}
}

// overCopies connects a rival that makes each copy into a separate buffer, which it reuses.
func overCopies(times int) Conn {
	copies := make([][]byte, 2*times)
	return swapping(func(sent []byte) ([]byte, error) {
		for i, to := range copies {
			if len(to) != len(sent) {
				to = make([]byte, len(sent))
				copies[i] = to
			}
			copy(to, sent)
			sent = to
		}
		return sent, nil
	}, func() {})
}
