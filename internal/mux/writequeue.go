package mux

// A writeQueue is a queue of streams. A stream is in at most one queue, and once. It leaves the
// queue as soon as it has nothing left to write, so calls that are made and cancelled while the
// writer is blocked leave nothing behind.
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

// A streamList is an unordered set of streams.
type streamList struct{ first *stream }

func (l *streamList) add(st *stream) {
	st.isLive = true
	if st.nextLive = l.first; st.nextLive != nil {
		st.nextLive.prevLive = st
	}
	l.first = st
}

// remove reports whether st was in the list.
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
