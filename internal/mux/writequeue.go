package mux

// A turns is a queue of streams. A stream is in one at most, once, and leaves
// it at once when it has nothing more to write, so that calls that are made and
// given up while the writer is stuck leave nothing behind.
type writeQueue struct{ first, last *stream }

func (q *writeQueue) push(st *stream) {
	st.queue, st.prev = q, q.last
	if q.last == nil {
		q.first = st
	} else {
		q.last.next = st
	}
	q.last = st
}

func (q *writeQueue) remove(st *stream) {
	if st.prev == nil {
		q.first = st.next
	} else {
		st.prev.next = st.next
	}
	if st.next == nil {
		q.last = st.prev
	} else {
		st.next.prev = st.prev
	}
	st.queue, st.prev, st.next = nil, nil, nil
}

// A streamList is a set of streams.
type streamList struct{ first *stream }

func (l *streamList) add(st *stream) {
	st.isLive = true
	if st.nextLive = l.first; st.nextLive != nil {
		st.nextLive.prevLive = st
	}
	l.first = st
}

// remove reports whether st was there.
func (l *streamList) remove(st *stream) bool {
	if !st.isLive {
		return false
	}
	st.isLive = false
	if st.prevLive == nil {
		l.first = st.nextLive
	} else {
		st.prevLive.nextLive = st.nextLive
	}
	if st.nextLive != nil {
		st.nextLive.prevLive = st.prevLive
	}
	st.prevLive, st.nextLive = nil, nil
	return true
}
