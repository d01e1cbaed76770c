package codec

// A oneof copies a oneof field, whose Go type is an interface that holds a
// pointer to one of several wrapper structs.
type oneof struct {
	wrappers []wrapper
}

// A wrapper is a program for one wrapper struct. The struct has one field, which always counts as
// set.
type wrapper struct {
	tab itab // of an iface that holds a pointer to the struct
	*program
}

// clone returns a copy of v, which holds a non-nil pointer.
func (o *oneof) clone(v iface, depth int) (w iface, bound int, f *failure) {
	p := o.wrapperOf(v)
	if p == nil {
		return iface{}, 0, throughBytes
	}
	w = iface{v.tab, alloc(p.goType)}
	bound, f = p.copy(w.data, v.data, depth)
	return w, bound, f
}

// wrapperOf returns the wrapper that v points to, or nil if o has no such wrapper.
func (o *oneof) wrapperOf(v iface) *wrapper {
	for i := range o.wrappers {
		if w := &o.wrappers[i]; w.tab == v.tab {
			return w
		}
	}
	return nil
}
