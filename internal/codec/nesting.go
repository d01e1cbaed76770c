package codec

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	// maxNesting is how deep objects and lists in JSON may be nested.
	maxNesting = 100

	// protojson reads the object of a google.protobuf.Any to its end to find its type, and then
	// reads it again. So it reads the content of n nested Any objects n+1 times. To encode an Any,
	// protojson decodes its value, so it copies the content of n nested Any messages n times.
	// checkNesting limits what protojson reads again, and nestedTypes what it copies again, to
	// timesAgain times the bytes of the message, plus freeAgain bytes. Because of freeAgain, a
	// small message can nest as deep as maxNesting allows.
	timesAgain = 8
	freeAgain  = 256 << 10
)

var errRepeats = errors.New("too much is in messages of google.protobuf.Any that are in others; nest them less deep, or use protobuf's binary format")

// mayRepeat returns how many bytes protojson may read or copy again for a message of n bytes.
func mayRepeat(n int) int { return timesAgain*n + freeAgain }

// checkNesting returns an error if protojson would take more than linear time to decode b, or
// recurse deeply. protojson itself reports all other mistakes.
func checkNesting(b []byte) error {
	var open [maxNesting]struct {
		at    int
		typed bool // may be a google.protobuf.Any
	}
	depth, again := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			if depth == maxNesting {
				return fmt.Errorf("objects and lists are nested more than %d deep", maxNesting)
			}
			open[depth].at, open[depth].typed = i, false
			depth++
		case '}', ']':
			if depth == 0 {
				return nil
			}
			depth--
			if open[depth].typed {
				again += i - open[depth].at
			}
			if again > mayRepeat(len(b)) {
				return errRepeats
			}
		case '"':
			begin := i
			i = endOfString(b, i)
			if depth > 0 && isType(b[begin:min(i+1, len(b))], b[min(i+1, len(b)):]) {
				open[depth-1].typed = true
			}
		}
	}
	return nil
}

// endOfString returns the index of the quotation mark that ends the string that begins at i, or
// len(b) if there is none.
func endOfString(b []byte, i int) int {
	for i++; i < len(b) && b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return min(i, len(b))
}

// isType reports whether s, a string with its quotation marks, is the name @type and a colon
// follows. rest is the text after s.
func isType(s, rest []byte) bool {
	const name = "@type"
	const longest = len(name)*len(`\u0040`) + 2
	switch {
	case len(s) > longest:
		return false
	case bytes.IndexByte(s, '\\') < 0:
		if string(s) != `"`+name+`"` {
			return false
		}
	default: // Go has the same escapes as JSON for the characters of name
		if plain, err := strconv.Unquote(string(s)); err != nil || plain != name {
			return false
		}
	}
	return bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
}

// nestedTypes finds the registered types while one message is encoded. protojson asks for a type
// at each google.protobuf.Any. Once the values of these messages have too many bytes in total,
// nestedTypes finds no more types.
type nestedTypes struct {
	*protoregistry.Types
	left int                  // bytes
	last protoreflect.Message // the value of the last Any; not yet counted
}

func (t *nestedTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if t.last != nil {
		t.left -= proto.Size(t.last.Interface())
	}
	if t.left < 0 {
		return nil, errRepeats
	}
	found, err := t.Types.FindMessageByURL(url)
	if err != nil {
		return nil, err
	}
	return nestedType{found, t}, nil
}

// A nestedType is the type of a value that is about to be decoded.
type nestedType struct {
	protoreflect.MessageType
	types *nestedTypes
}

func (t nestedType) New() protoreflect.Message {
	t.types.last = t.MessageType.New()
	return t.types.last
}
