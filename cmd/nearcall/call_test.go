package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
)

// callWith runs nearcall call with stdin.
func callWith(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"call"}, args...), stdio{strings.NewReader(stdin), &out, &errs})
	return code, out.String(), errs.String()
}

// TestCallMakesEachKindOfCall checks the replies to messages from arguments and from stdin.
func TestCallMakesEachKindOfCall(t *testing.T) {
	file := filepath.Join(tempDir(t), "messages.json")
	if err := os.WriteFile(file, []byte("{}\n{\"item\":\"tea\"}\n{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	const order = "{\n  \"id\": \"1\",\n  \"item\": \"tea\",\n  \"quantity\": 2\n}\n"
	for _, c := range []struct {
		name, method, stdin string
		args                []string
		want                string
	}{
		{"unary", "Place", "", []string{`{"item":"tea","quantity":2}`}, order},
		{"unary from stdin", "Place", `{"item":"tea","quantity":2}`, nil, order},
		{"unary from explicit stdin", "Place", " {\"item\":\"tea\",\n\"quantity\":2} \n", []string{"-"}, order},
		{"unary without a message", "Place", "", nil, "{\n  \"id\": \"1\"\n}\n"},
		{"server stream", "List", "", []string{"-compact", `{"customer":"ann"}`},
			`{"customer":"ann"}` + "\n" + `{"id":"1","customer":"ann"}` + "\n" + `{"id":"2","customer":"ann"}` + "\n"},
		{"client stream", "Import", "", []string{`{}`, `{"item":"tea"}`, `{}`}, "{\n  \"placed\": 3\n}\n"},
		{"client stream from stdin", "Import", `{} {"item":"tea"}{}` + "\n{}", nil, "{\n  \"placed\": 4\n}\n"},
		{"client stream of -d", "Import", "", []string{"-d", `{} {"item":"tea"}`}, "{\n  \"placed\": 2\n}\n"},
		{"client stream of -d with no messages", "Import", "{}", []string{"-d", ""}, "{}\n"},
		{"client stream from a file", "Import", "", []string{"-d", "@" + file}, "{\n  \"placed\": 3\n}\n"},
		{"unary of -d", "Place", "", []string{"-d", `{"item":"tea","quantity":2}`}, order},
		{"unary from stdin as for grpcurl", "Place", `{"item":"tea","quantity":2}`, []string{"-d", "@"}, order},
		{"unary from stdin as for buf", "Place", `{"item":"tea","quantity":2}`, []string{"-d", "@-"}, order},
		{"unary from stdin of -d", "Place", `{"item":"tea","quantity":2}`, []string{"-d", "-"}, order},
		{"client stream without messages", "Import", "", nil, "{}\n"},
		{"both", "Haggle", "", []string{"-compact", `{"cents":1}`, `{"cents":100}`}, `{"askCents":100}` + "\n" + `{"accepted":true,"askCents":100}` + "\n"},
		{"both from stdin", "Haggle", `{"cents":1}`, []string{"-compact"}, `{"askCents":100}` + "\n"},
		{"flags behind arguments", "List", "", []string{`{}`, "-compact", "-emit-defaults"},
			`{"id":"0","customer":"","item":"","quantity":0,"shipped":false}` + "\n" + `{"id":"1","customer":"","item":"","quantity":0,"shipped":false}` + "\n" +
				`{"id":"2","customer":"","item":"","quantity":0,"shipped":false}` + "\n"},
	} {
		// The user agent would be in the reply.
		t.Run(c.name, func(t *testing.T) {
			onEveryPath(t, withPlainShop, func(t *testing.T, target string) {
				code, stdout, stderr := callWith(t, c.stdin, append([]string{target, orders + "/" + c.method}, c.args...)...)
				if code != exitOK || stdout != c.want || stderr != "" {
					t.Errorf("exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
				}
			})
		})
	}
}

// A plainShop tells nothing of metadata.
type plainShop struct{ shop }

func (plainShop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	return &orderspb.Order{Id: 1, Item: req.GetItem(), Quantity: req.GetQuantity()}, nil
}

func withPlainShop(srv server) {
	orderspb.RegisterOrdersServer(srv, plainShop{})
	reflection.Register(srv)
}

// TestCallIsInteractive checks that messages are sent as they arrive on stdin, and replies
// printed as they arrive, also if the call ends before stdin.
func TestCallIsInteractive(t *testing.T) {
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		in, typing := io.Pipe()
		screen, out := io.Pipe()
		defer typing.Close()
		code := make(chan int, 1)
		var errs bytes.Buffer
		go func() {
			code <- run(t.Context(), []string{"call", "-compact", target, orders + "/Haggle"}, stdio{in, out, &errs})
			_ = out.Close()
		}()
		lines := bufio.NewScanner(screen)
		for _, turn := range []struct{ says, hears string }{
			{`{"cents": 1}`, `{"askCents":100}`},
			{`{"cents": 2}`, `{"askCents":100}`},
			{`{"cents": 100}`, `{"accepted":true,"askCents":100}`},
		} {
			if _, err := io.WriteString(typing, turn.says); err != nil {
				t.Fatal(err)
			}
			if !lines.Scan() || lines.Text() != turn.hears {
				t.Fatalf("to %s it replies %s, %v", turn.says, lines.Text(), lines.Err())
			}
		}
		if lines.Scan() {
			t.Errorf("it goes on with %q", lines.Text())
		}
		if got := <-code; got != exitOK {
			t.Errorf("exit code %d: %s", got, errs.String())
		}
	})
}

// Text of a server must not control the terminal.
func TestStatusesHaveNoControlCharacters(t *testing.T) {
	_, _, stderr := callWith(t, "", onOne(t), orders+"/Place", `{"item":"\u001b[31mtea\u0007","quantity":11}`)
	if want := "nearcall: ResourceExhausted: there is too little \\u001b[31mtea\\u0007\n"; !strings.HasPrefix(stderr, want) {
		t.Errorf("it prints %q", stderr)
	}
}

func TestCallPrintsTheStatusWithItsDetails(t *testing.T) {
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		code, stdout, stderr := callWith(t, "", target, orders+"/Place", `{"item":"tea","quantity":11}`)
		const want = `nearcall: ResourceExhausted: there is too little tea
    {
      "@type": "type.googleapis.com/nearcall.examples.orders.Shortage",
      "item": "tea",
      "left": 10,
      "wanted": 11
    }
`
		if code != 64+8 || stdout != "" || stderr != want {
			t.Errorf("exit code %d, stdout %q, stderr\n%s", code, stdout, stderr)
		}
	})
}

// TestCallSendsAndPrintsMetadata checks the flags that set metadata, and -v.
func TestCallSendsAndPrintsMetadata(t *testing.T) {
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		code, stdout, stderr := callWith(t, "", "-v", "-H", "who: ann", "-H", "Who:bob", target, orders+".Place", "{}",
			"-H", "who-bin: AP8", "-authority", "shop.example", "-user-agent", "tester/1")
		var reply struct{ Customer string }
		if err := json.Unmarshal([]byte(stdout), &reply); err != nil {
			t.Fatalf("exit code %d, %v: %s %s", code, err, stdout, stderr)
		}
		if code != exitOK || !strings.HasPrefix(reply.Customer, `["ann" "bob"] ["\x00\xff"] ["shop.example"] ["tester/1 `) {
			t.Errorf("exit code %d, %q arrives", code, reply.Customer)
		}
		lines := "\n" + stderr
		for _, want := range []string{"> /" + orders + "/Place", "> who: ann", "> who: bob", "> who-bin: AP8=", "< shop-open: yes", "< shop-bin: AP8=", "< shop-closed: no"} {
			if !strings.Contains(lines, "\n"+want+"\n") {
				t.Errorf("%q is not printed in\n%s", want, stderr)
			}
		}
	})
}

func TestCallEndsAtItsTime(t *testing.T) {
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		fails(t, 64+4, "nearcall: DeadlineExceeded: ", "call", "-max-time", "0.2", target, orders+"/Await", "{}")
	})
	t.Run("while stdin is silent", func(t *testing.T) {
		in, typing := io.Pipe()
		defer typing.Close()
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"call", "-max-time", "200ms", onOne(t), orders + "/Place"}, stdio{in, &out, &errs})
		if code != 64+4 {
			t.Errorf("exit code %d, %s", code, errs.String())
		}
	})
}

// TestCallIsInterrupted checks that the server's context ends when the command is interrupted.
func TestCallIsInterrupted(t *testing.T) {
	awaited := make(chan struct{})
	target := serveNear(t, "tcp:127.0.0.1:0", func(srv server) {
		orderspb.RegisterOrdersServer(srv, shop{awaited: awaited})
		reflection.Register(srv)
	})
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		<-awaited
		interrupt()
	}()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"call", target, orders + "/Await", "{}"}, stdio{strings.NewReader(""), &out, &errs})
	if code != exitInterrupted || errs.String() != "nearcall call: interrupted\n" || out.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}

func TestBadMessagesAreExplained(t *testing.T) {
	target := onOne(t)
	place, imports := orders+"/Place", orders+"/Import"
	for _, c := range []struct {
		method, stdin string
		args          []string
		code          int
		says          string
	}{
		{place, "", []string{`{"item":}`}, 1, "message 1 is not JSON: invalid character '}' looking for beginning of value"},
		{place, "", []string{`{"item":"tea"`}, 1, "message 1 is not JSON: unexpected EOF"},
		{place, `{"item":"tea"`, nil, 1, "message 1 is not JSON: unexpected EOF"},
		{place, `{"item":tea}`, nil, 1, "message 1 is not JSON: invalid character 'e' in literal true"},
		{place, "", []string{`{"itm":"tea"}`}, 1, `message 1: message type nearcall.examples.orders.PlaceRequest has no known field named itm; 'nearcall describe ` + target + ` nearcall.examples.orders.PlaceRequest' shows its fields`},
		{place, "", []string{`{"quantity":"many"}`}, 1, `message 1: strconv.ParseInt: parsing "many"`},
		{place, "", []string{`[]`}, 1, "message 1: bad input: expecting start of JSON object"},
		{place, "", []string{`{} {}`}, 1, "request data contained more than 1 message"},
		{place, "", []string{`{}`, `{}`}, 1, "request data contained more than 1 message"},
		{place, `{}{}`, nil, 1, "request data contained more than 1 message"},
		{place, "", []string{`{}`, `-`}, 2, "- stands for messages from stdin"},
		{place, "", []string{"-d", `{}`, `{}`}, 2, "-d has the messages, and other messages cannot be beside it"},
		{place, "", []string{"-d", "@no/such/file"}, 1, "nearcall call: open no/such/file: "},
		{place, "", []string{"-d", `{} {}`}, 1, "request data contained more than 1 message"},
		{imports, `{} {"quantity":1.5}`, nil, 1, "message 2: strconv.ParseInt"},
		{imports, "", []string{`{}`, `{`}, 1, "message 2 is not JSON: unexpected EOF"},
		{orders + "/Haggle", `{"cents":`, nil, 1, "message 1 is not JSON: unexpected EOF"},
	} {
		code, stdout, stderr := callWith(t, c.stdin, append([]string{target, c.method}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s %q %q: exit code %d, want %d\nstdout %q\nstderr %q\nwant   %q", c.method, c.stdin, c.args, code, c.code, stdout, stderr, c.says)
		}
	}
}

// The null device is no terminal: nothing is asked for, and nothing arrives.
func TestTheNullDeviceHasNoMessages(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	target := onOne(t)
	for method, want := range map[string]string{"Import": "{}\n", "Haggle": "", "List": "{}\n{\"id\":\"1\"}\n{\"id\":\"2\"}\n"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"call", "-compact", target, orders + "/" + method}, stdio{null, &out, &errs})
		if code != exitOK || errs.Len() > 0 || out.String() != want {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", method, code, out.String(), errs.String())
		}
	}
}

// A brokenReader fails as a file can.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

func TestAFailedReadIsAnError(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"call", onOne(t), orders + "/Import"}, stdio{brokenReader{}, &out, &errs})
	if code != exitFailed || errs.String() != "nearcall call: message 1: the disk is gone\n" {
		t.Errorf("exit code %d, %s", code, errs.String())
	}
}

func TestBadCommandLinesAreExplained(t *testing.T) {
	missing := filepath.Join(tempDir(t), "missing")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"list"}, 2, "received 0; usage: nearcall list TARGET [SERVICE] [flags]"},
		{[]string{"list", "a", "b", "c"}, 2, "received 3; usage:"},
		{[]string{"lst", "x"}, 2, `unknown command "lst" for "nearcall"; did you mean list?`},
		{[]string{"call", "localhost:1", "-plaintex"}, 2, "-plaintex; did you mean -plaintext? usage: nearcall call TARGET METHOD [JSON ...] [flags]; 'nearcall help call' lists the flags"},
		{[]string{"call", "-expand-headers", "-H", "a: ${NO_SUCH_VARIABLE}", "localhost:1", "x"}, 2, "missing environment variable"},
		{[]string{"call", "-format", "xml", "localhost:1", "x"}, 2, "-format xml: write json or text"},
		{[]string{"call", "-max-time", "soon", "localhost:1"}, 2, "write a number of seconds above 0, or a time such as 500ms"},
		{[]string{"call", "-max-time", "-1", "localhost:1"}, 2, "write a number of seconds above 0"},
		{[]string{"call", "-max-msg-sz", "0", "localhost:1", "x"}, 2, "-max-msg-sz 0"},
		{[]string{"list", "inproc:shop"}, 2, "inproc names exist only within the server's own process"},
		{[]string{"list", "tcp:localhost"}, 1, `cannot dial "tcp:localhost": address localhost: missing port`},
		{[]string{"list", "unix:"}, 1, "the path names no file"},
		{[]string{"list", ""}, 1, "the target is empty"},
		{[]string{"list", "-plaintext", "-insecure", "h:1"}, 2, "[plaintext insecure]"},
		{[]string{"list", "-cert", "c", "h:1"}, 2, "missing [key]"},
		{[]string{"list", "-cacert", missing, "h:1"}, 1, "-cacert, -cert and -key: could not read ca certificate: open " + missing},
		{[]string{"list", "-cert", missing, "-key", missing, "h:1"}, 1, "could not load client key pair: open " + missing},
		{[]string{"list", "-cacert", "call_test.go", "h:1"}, 1, "failed to append ca certs"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) { fails(t, c.code, c.says, c.args...) })
	}
}

func TestFlagsEndAtTwoDashes(t *testing.T) {
	fails(t, 1, "message 1: bad input", "call", onOne(t), "--", orders+"/Place", "-5")
}

func TestLargeRepliesAreRefused(t *testing.T) {
	onEveryPath(t, withPlainShop, func(t *testing.T, target string) {
		// The limit does not hold for the replies of reflection.
		item := strings.Repeat("x", 20_000)
		fails(t, 64+8, "; -max-msg-sz lets larger replies in", "call", "-max-msg-sz", "20000", target, orders+"/Place", `{"item":"`+item+`"}`)
		succeeds(t, "call", "-max-msg-sz", "200", target, orders+"/Place", "{}")
	})
}

// TestMetadataIsPrintedWithoutControlCharacters: a terminal would obey them, and a line break
// would begin an entry that nobody has sent.
func TestMetadataIsPrintedWithoutControlCharacters(t *testing.T) {
	var out strings.Builder
	c := new(cobra.Command)
	c.SetErr(&out)
	h := &caller{callFlags: &callFlags{verbose: true}, c: c}
	h.printMetadata("< ", metadata.MD{"a": {"\x1b[2J\n< b: c"}, "a-bin": {"\n"}})
	if want := "< a: \\u001b[2J\\u000a< b: c\n< a-bin: Cg==\n"; out.String() != want {
		t.Errorf("it prints %q, want %q", out.String(), want)
	}
}
