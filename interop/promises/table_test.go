package promises

import (
	"os"
	"strings"
	"testing"
)

// promises are all of them, in the order of the table's columns.
var promises = []struct {
	name string
	ask  func(*testing.T, *face)
}{
	{"deadline", deadline}, {"in Recv", deadlineInRecv}, {"in Send", deadlineInSend}, {"cancel", cancellation},
	{"age", age}, {"grace", grace}, {"idle", idle}, {"pings", keepaliveEnforcement},
	{"streams", concurrentStreams}, {"header", headerLimit}, {"messages", messageLimits},
	{"peer", peerAndAuthz}, {"tap", tapHandle}, {"stats", statsHandler},
	{"stop", stop}, {"graceful", gracefulStop}, {"log", logLine},
}

// The table says which promise a test asks of which face: yes, or the letter of the reason why it does
// not apply.
const table = `
                        deadline in_Recv in_Send cancel age grace idle pings streams header messages peer tap stats stop graceful log
Server.Client             yes      yes     yes    yes    P    P     P    P     yes     H      yes     yes yes  yes  yes   yes     N
inproc                    yes      yes     yes    yes    P    P     P    P     yes     H      yes     yes yes  yes  yes   yes     N
shm                       yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
unix                      yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
tcp                       yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
tls                       yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
ws                        yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
wss                       yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
quic                      yes      yes     yes    yes   yes  yes   yes   Q     yes    yes     yes     yes yes  yes  yes   yes    yes
ServeConn                 yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
near,_shm                 yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
near,_inproc              yes      yes     yes    yes   yes  yes   yes   P     yes     H      yes     yes yes  yes  yes   yes    yes
grpc                      yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
grpc,_mixed_TLS           yes      yes      S     yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
connect/1.1               yes      yes     yes    yes   yes  yes   yes   1      1     yes     yes     yes yes  yes  yes   yes    yes
connect/2                 yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
grpc-web/1.1              yes      yes     yes    yes   yes  yes   yes   1      1     yes     yes     yes yes  yes  yes   yes    yes
grpc-web/2                yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
json/1.1                  yes      yes     yes    yes   yes  yes   yes   1      1     yes     yes     yes yes  yes  yes   yes    yes
json/2                    yes      yes     yes    yes   yes  yes   yes  yes    yes    yes     yes     yes yes  yes  yes   yes    yes
ServeHTTP,_grpc           yes      yes      S     yes    L    L     L    L      L      L      yes     yes yes  yes  yes   yes     C
ServeHTTP,_connect/1.1    yes      yes     yes    yes    L    L     L    L      L      L      yes     yes yes  yes  yes   yes     C
ServeHTTP,_connect/2      yes      yes     yes    yes    L    L     L    L      L      L      yes     yes yes  yes  yes   yes     C
C++                       yes      yes     yes    yes   yes  yes   yes   K     yes    yes     yes     yes yes  yes  yes   yes    yes
`

// reasons are documented: the file has the text.
var reasons = map[string]struct{ file, text string }{
	"P": {"options_server.go", "In process the option has no effect."},
	"H": {"options_server.go", "In process there is no limit."},
	"N": {"docs/semantics.md", "do nothing: there is no handshake"},
	"Q": {"docs/quic.md", "no effect: QUIC does not say which packets are PINGs"},
	"S": {"docs/semantics.md", "a handler that sends to a client that reads nothing can wait beyond its deadline, until the connection ends"},
	"1": {"docs/semantics.md", "A connection has one call at a time and no PINGs, so `MaxConcurrentStreams` and `KeepaliveEnforcementPolicy` limit nothing."},
	"L": {"web.go", "Limits of connections and headers are those of the HTTP server"},
	"C": {"web.go", "the HTTP server has secured the connection"},
	"K": {"cpp/include/nearcall/channel.hpp", "later ones are as far apart as the server's `min_ping` wants them"},
}

// TestPromises asks each promise of each face. A face or a promise without a cell fails, and so does a
// reason that is documented nowhere.
func TestPromises(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	columns := words(lines[0])
	if len(columns) != len(promises) {
		t.Fatalf("the table has %d columns, and there are %d promises", len(columns), len(promises))
	}
	cells, rows := make(map[string][]string), lines[1:]
	for _, row := range rows {
		w := words(row)
		cells[w[0]] = w[1:]
	}
	if len(rows) != len(faces) {
		t.Errorf("the table has %d rows, and there are %d faces", len(rows), len(faces))
	}
	for i := range faces {
		f := &faces[i]
		if n := len(cells[f.name]); n != len(promises) {
			t.Errorf("%s: the table has %d cells, and there are %d promises", f.name, n, len(promises))
			continue
		}
		for j, p := range promises {
			if p.name != columns[j] {
				t.Fatalf("column %d is %q, want %q", j, columns[j], p.name)
			}
			cell := cells[f.name][j]
			if cell == "yes" {
				t.Run(p.name+"/"+f.name, func(t *testing.T) {
					t.Parallel()
					p.ask(t, f)
				})
			} else if reasons[cell].text == "" {
				t.Errorf("%s, %s: the table says %q, which is no reason", f.name, p.name, cell)
			}
		}
	}
	for letter, r := range reasons {
		text, err := os.ReadFile("../../" + r.file)
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(plain(string(text)), r.text) {
			t.Errorf("%s does not say %q", r.file, r.text)
		}
		if !strings.Contains(table, " "+letter+" ") && !strings.Contains(table, " "+letter+"\n") {
			t.Errorf("no cell has the reason %s", letter)
		}
	}
}

// words returns the words of a row. An underscore stands for a space.
func words(row string) []string {
	all := strings.Fields(row)
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], "_", " ")
	}
	return all
}

// plain returns text in one line, without the marks of comments.
func plain(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(strings.TrimSpace(lines[i]), "/ ")
	}
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}
