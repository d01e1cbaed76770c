package link

// A Prepared is a message that was encoded, and perhaps compressed, once, to be sent
// many times. It is immutable: any number of streams may send it concurrently.
type Prepared struct {
	plain      []byte
	compressed []byte // with encoding, if that is not empty
	encoding   string
}

// Prepare encodes m and, if encoding is not empty, compresses it. Empty messages are not
// compressed. The error is a *SendError.
func Prepare(m *Message, encoding string) (*Prepared, error) {
	b, err := m.Append(nil)
	if err != nil {
		return nil, err
	}
	p := &Prepared{plain: b}
	if encoding = Compressor(encoding); encoding != "" && len(b) > 0 {
		if p.compressed, err = Compress(b, encoding); err != nil {
			return nil, err
		}
		p.encoding = encoding
	}
	return p, nil
}

// Message returns p as a message to send.
func (p *Prepared) Message() Message { return Message{value: p, bound: len(p.plain)} }

// Size returns the length of the encoding, in bytes.
func (p *Prepared) Size() int { return len(p.plain) }

// Compressed returns m compressed with encoding, if Prepare did that. The bytes must not be
// modified.
func (m *Message) Compressed(encoding string) ([]byte, bool) {
	p, ok := m.value.(*Prepared)
	if !ok || encoding == "" || p.encoding != encoding {
		return nil, false
	}
	return p.compressed, true
}
