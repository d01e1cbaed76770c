package main

// copying is a rival that copies messages and nothing else, so many times there
// and as often back.
func copying(name string, times int, note string) Rival {
	return Rival{
		Name: name, Limit: true, Note: note,
		Connect: func(Services) (Conn, error) { return overCopies(times), nil },
		Without: []Absence{{func(r Row) bool { return r.Size < 100<<10 }, "copies are of messages of 100 KB and more"}},
	}
}

// overCopies makes each copy to memory of its own, which is kept.
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
