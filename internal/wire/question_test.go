package wire

import (
	"encoding/hex"
	"testing"
)

// A beginning is what a client sends first, and whether it asks for the server's protocol.
type beginning struct {
	About string `json:"about"`
	Hex   string `json:"hex"`
	Asks  bool   `json:"asks"`
}

// A saying is what a server says to the question, and what it is, as far as it is known.
type saying struct {
	About string `json:"about"`
	Hex   string `json:"hex"`
	Is    string `json:"is"` // nearcall, grpc or other; "" if more must come
}

// TestVectorsOfTheQuestion makes the vectors, to which the tests of sock hold both sides.
func TestVectorsOfTheQuestion(t *testing.T) {
	var v struct {
		About   string      `json:"about"`
		Answer  string      `json:"answer"`
		Clients []beginning `json:"clients"`
		Servers []saying    `json:"servers"`
	}
	v.About = "How a client asks which protocol a server speaks, and how it understands what the server says."
	v.Answer = hex.EncodeToString([]byte(Answer))
	const window, other, zero = "\x00\x04\x00\x01\x00\x00", "\x6e\x64\x00\x00\x00\x01", "\x6e\x63\x00\x00\x00\x00"
	settings := func(flags, stream byte, payload string) string {
		return Preface + string([]byte{0, 0, byte(len(payload)), 4, flags, 0, 0, 0, stream}) + payload
	}
	asks := func(about, b string) {
		v.Clients = append(v.Clients, beginning{about, hex.EncodeToString([]byte(b)), true})
	}
	not := func(about, b string) {
		v.Clients = append(v.Clients, beginning{about, hex.EncodeToString([]byte(b)), false})
	}
	asks("The question.", Question)
	asks("The setting among others.", settings(0, 0, window+Setting+other))
	asks("A flag that HTTP/2 does not define is ignored.", settings(0x80, 0, Setting))
	asks("So is the reserved bit of the stream.", Preface+"\x00\x00\x06\x04\x00\x80\x00\x00\x00"+Setting)
	asks("Of a setting that comes twice the last value counts.", settings(0, 0, zero+Setting))
	not("The same with another value.", settings(0, 0, Setting+zero))
	not("Another value.", settings(0, 0, zero))
	not("Another setting.", settings(0, 0, window+other))
	not("No setting.", settings(0, 0, ""))
	not("Bytes that are no setting but parts of two.", settings(0, 0, "\x00\x04\x00\x00\x6e\x63"+"\x00\x00\x00\x01\x00\x00"))
	not("A frame that ends in the middle of a setting.", settings(0, 0, Setting+"x"))
	not("An acknowledgement.", settings(1, 0, Setting))
	not("SETTINGS of a stream.", settings(0, 1, Setting))
	not("The setting in a second frame.", settings(0, 0, "")+settings(0, 0, Setting)[len(Preface):])
	not("Another frame.", Preface+"\x00\x00\x06\x06\x00\x00\x00\x00\x00"+Setting)
	not("A frame of 16385 bytes, of which no more than the head is needed.", Preface+"\x00\x40\x01\x04\x00\x00\x00\x00\x00")
	says := func(is, about, b string) {
		v.Servers = append(v.Servers, saying{about, hex.EncodeToString([]byte(b)), is})
	}
	says("nearcall", "The answer.", Answer)
	says("grpc", "SETTINGS of HTTP/2, whose payload follows.", "\x00\x00\x06\x04\x00\x00\x00\x00\x00")
	says("", "The beginning of the answer.", Answer[:8])
	says("", "The beginning of SETTINGS.", "\x00\x00\x06\x04")
	says("other", "A server of nearcall that does not know the question.", Magic[:9])
	says("other", "Almost the answer.", "nearcall ")
	says("other", "An HTTP/1 server, which can also be how a port of TLS answers.", "HTTP/1.1 400 Bad Request")
	says("other", "An alert of TLS.", "\x15\x03\x01\x00\x02\x02\x46")
	says("other", "Another frame of HTTP/2.", "\x00\x00\x08\x07\x00\x00\x00\x00\x00")
	says("other", "An acknowledgement of SETTINGS.", "\x00\x00\x00\x04\x01\x00\x00\x00\x00")
	says("other", "SETTINGS of a stream.", "\x00\x00\x00\x04\x00\x00\x00\x00\x01")
	says("other", "SETTINGS that are too large.", "\x00\x40\x01\x04")
	golden(t, "question.json", &v)
}
