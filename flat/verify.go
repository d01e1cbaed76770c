package flat

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of the verification, apart from the message's length.
const (
	// maxDepth is how deeply tables may nest.
	maxDepth = 64

	// stepsPerByte bounds the work for a message. Each table and each element of a vector is
	// referred to by an offset of four bytes, so without sharing, a message has at most a quarter
	// as many of these as bytes. A message may share tables. But if shared tables share tables
	// again, there are exponentially many paths, and to verify a small message could take seconds.
	// A message of any size may take freeSteps steps.
	stepsPerByte = 1
	freeSteps    = 1024
)

// verify returns the position of the root of b, or an error if the root is not a table of the type
// t. It checks offsets, lengths, alignment, the ends of strings and required fields, not the values
// of scalars or the text of strings. It does not check a union member whose type is not in the
// schema: generated code does not read that.
func (t *table) verify(b []byte) (root int, err error) {
	v := verifier{b: b, steps: stepsPerByte*len(b) + freeSteps}
	if root, err = v.offset(0); err != nil {
		return 0, err
	}
	return root, v.table(t, root, maxDepth)
}

// A verifier verifies one message.
type verifier struct {
	b     []byte
	steps int // that are left
}

var (
	errSteps = errors.New("it shares its tables so often that to verify it takes too long")
	errDepth = fmt.Errorf("its tables nest more than %d deep", maxDepth)
)

// step counts n steps.
func (v *verifier) step(n int) error {
	if v.steps -= n; v.steps < 0 {
		return errSteps
	}
	return nil
}

// has returns an error if the position at is not aligned, or if fewer than n bytes follow it.
func (v *verifier) has(at, n, align int) error {
	switch {
	case at < 0 || n < 0 || at > len(v.b) || n > len(v.b)-at:
		return fmt.Errorf("%d bytes at %d are beyond its %d", n, at, len(v.b))
	case at%align != 0:
		return fmt.Errorf("what is at %d should be at a multiple of %d", at, align)
	}
	return nil
}

// offset reads the offset that is stored at the position at, and returns the position that it
// refers to.
func (v *verifier) offset(at int) (int, error) {
	if err := v.has(at, offsetSize, offsetSize); err != nil {
		return 0, err
	}
	o := binary.LittleEndian.Uint32(v.b[at:])
	if o == 0 || int64(o) > int64(len(v.b)-at) {
		return 0, fmt.Errorf("the offset at %d is %d", at, o)
	}
	return at + int(o), nil
}

// table verifies the table at position at.
func (v *verifier) table(t *table, at, depth int) error {
	if depth == 0 {
		return errDepth
	}
	if err := v.step(1); err != nil {
		return err
	}
	vtable, size, err := v.vtable(at)
	if err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	for i := range t.fields {
		f := &t.fields[i]
		o := 0
		if f.slot+2 <= len(vtable) {
			o = int(binary.LittleEndian.Uint16(vtable[f.slot:]))
		}
		if o == 0 {
			if f.required {
				return fmt.Errorf("%s has no %s", t.name, f.name)
			}
			continue
		}
		if o+f.size > size {
			return fmt.Errorf("%s.%s is beyond the table", t.name, f.name)
		}
		if err := v.has(at+o, f.size, f.align); err != nil {
			return fmt.Errorf("%s.%s: %w", t.name, f.name, err)
		}
		if f.kind == kindInline {
			continue
		}
		if err := v.field(f, at, at+o, vtable, depth); err != nil {
			if err == errSteps || err == errDepth {
				return err
			}
			return fmt.Errorf("%s.%s: %w", t.name, f.name, err)
		}
	}
	return nil
}

// vtable returns the vtable of the table at position at, and the size of the table.
func (v *verifier) vtable(at int) (vtable []byte, size int, err error) {
	if err := v.has(at, 4, 4); err != nil {
		return nil, 0, err
	}
	from := int64(at) - int64(int32(binary.LittleEndian.Uint32(v.b[at:])))
	if from < 0 || from > int64(len(v.b)) {
		return nil, 0, fmt.Errorf("its vtable is at %d", from)
	}
	if err := v.has(int(from), 4, 2); err != nil {
		return nil, 0, fmt.Errorf("its vtable: %w", err)
	}
	n := int(binary.LittleEndian.Uint16(v.b[from:]))
	size = int(binary.LittleEndian.Uint16(v.b[from+2:]))
	if n < 4 || n%2 != 0 || size < 4 {
		return nil, 0, fmt.Errorf("its vtable has %d bytes, and the table %d", n, size)
	}
	if err := v.has(int(from), n, 2); err != nil {
		return nil, 0, fmt.Errorf("its vtable: %w", err)
	}
	if err := v.has(at, size, 4); err != nil {
		return nil, 0, err
	}
	return v.b[from:][:n], size, nil
}

// field verifies what an offset refers to. The offset is stored at the position at, in the field f
// of a table. of is the position of that table, and vtable is its vtable.
func (v *verifier) field(f *field, of, at int, vtable []byte, depth int) error {
	to, err := v.offset(at)
	switch {
	case err != nil:
		return err
	case f.kind == kindVector:
		_, err = v.vector(to, f.elem)
		return err
	case f.kind == kindUnion:
		kind, err := v.unionType(f, of, vtable)
		if t := f.union[kind]; err == nil && t != nil {
			return v.table(t, to, depth-1)
		}
		return err
	case !f.many:
		return v.one(f, to, depth)
	}
	n, err := v.vector(to, inline{offsetSize, offsetSize})
	if err == nil {
		err = v.step(n)
	}
	for i := 0; i < n && err == nil; i++ {
		var elem int
		if elem, err = v.offset(to + offsetSize*(i+1)); err == nil {
			err = v.one(f, elem, depth)
		}
	}
	return err
}

// one verifies the string or the table at position at.
func (v *verifier) one(f *field, at, depth int) error {
	if f.kind == kindString {
		return v.string(at)
	}
	return v.table(f.table, at, depth-1)
}

// unionType returns the type of the union f. The field before f holds that type.
func (v *verifier) unionType(f *field, of int, vtable []byte) (byte, error) {
	o := int(binary.LittleEndian.Uint16(vtable[f.slot-2:])) // the type's slot is just before f's
	if o == 0 {
		return 0, errors.New("the union has a value and no type")
	}
	if err := v.has(of+o, 1, 1); err != nil {
		return 0, err
	}
	return v.b[of+o], nil
}

// vector verifies the bounds of the vector at position at, and returns how many elements it has.
func (v *verifier) vector(at int, elem inline) (n int, err error) {
	if err := v.has(at, offsetSize, offsetSize); err != nil {
		return 0, err
	}
	count := binary.LittleEndian.Uint32(v.b[at:])
	if at += offsetSize; int64(count)*int64(elem.size) > int64(len(v.b)-at) {
		return 0, fmt.Errorf("a vector of %d elements at %d is beyond its %d bytes", count, at, len(v.b))
	}
	if count > 0 && at%elem.align != 0 {
		return 0, fmt.Errorf("the elements at %d should be at a multiple of %d", at, elem.align)
	}
	return int(count), nil
}

// string verifies the string at position at, which ends with a zero byte.
func (v *verifier) string(at int) error {
	n, err := v.vector(at, inline{1, 1})
	if err != nil {
		return err
	}
	if end := at + offsetSize + n; end == len(v.b) || v.b[end] != 0 {
		return fmt.Errorf("the string at %d does not end with a zero byte", at)
	}
	return nil
}
