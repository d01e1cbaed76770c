package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc/reflection"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	v1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// succeeds runs the command, which must print nothing on stderr, and returns its output.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := nearcallCommand(t, args...)
	if code != exitOK || stderr != "" {
		t.Errorf("%q: exit code %d, stderr %q", args, code, stderr)
	}
	return stdout
}

const methods = orders + ".Await\n" + orders + ".Haggle\n" + orders + ".Import\n" + orders + ".List\n" + orders + ".Place\n"

func TestListPrintsServicesAndMethods(t *testing.T) {
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		const services = "grpc.reflection.v1.ServerReflection\ngrpc.reflection.v1alpha.ServerReflection\n" + orders + "\n"
		if got := succeeds(t, "list", target); got != services {
			t.Errorf("the services are %q", got)
		}
		if got := succeeds(t, "list", target, orders); got != methods {
			t.Errorf("the methods are %q", got)
		}
	})
}

func TestListFallsBackToTheOldReflection(t *testing.T) {
	old := func(srv server) {
		orderspb.RegisterOrdersServer(srv, shop{})
		v1alpha.RegisterServerReflectionServer(srv, reflection.NewServer(reflection.ServerOptions{Services: srv}))
	}
	onEveryPath(t, old, func(t *testing.T, target string) {
		if got, want := succeeds(t, "list", target), "grpc.reflection.v1alpha.ServerReflection\n"+orders+"\n"; got != want {
			t.Errorf("the services are %q", got)
		}
		if got := succeeds(t, "list", target, orders); got != methods {
			t.Errorf("the methods are %q", got)
		}
	})
}

func TestDescribePrintsProtoSource(t *testing.T) {
	const (
		prefix  = "nearcall.examples.orders."
		service = orders + " is a service:\n" + `service Orders {
  rpc Await ( .nearcall.examples.orders.AwaitRequest ) returns ( .nearcall.examples.orders.Order );
  rpc Haggle ( stream .nearcall.examples.orders.Offer ) returns ( stream .nearcall.examples.orders.Answer );
  rpc Import ( stream .nearcall.examples.orders.PlaceRequest ) returns ( .nearcall.examples.orders.ImportReply );
  rpc List ( .nearcall.examples.orders.ListRequest ) returns ( stream .nearcall.examples.orders.Order );
  rpc Place ( .nearcall.examples.orders.PlaceRequest ) returns ( .nearcall.examples.orders.Order );
}
`
		message = prefix + "AwaitRequest is a message:\nmessage AwaitRequest {\n  int64 id = 1;\n}\n"
		method  = orders + ".Await is a method:\nrpc Await ( .nearcall.examples.orders.AwaitRequest ) returns ( .nearcall.examples.orders.Order );\n" + message +
			prefix + `Order is a message:
message Order {
  int64 id = 1;
  string customer = 2;
  string item = 3;
  int32 quantity = 4;
  bool shipped = 5;
}
`
	)
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		for symbol, want := range map[string]string{
			orders: service, orders + "/Await": method, orders + ".Await": method, prefix + "AwaitRequest": message,
			prefix + "Order.id": prefix + "Order.id is a field:\nint64 id = 1;\n",
		} {
			if got := succeeds(t, "describe", target, symbol); got != want {
				t.Errorf("%s is printed as\n%s", symbol, got)
			}
		}
		if got := succeeds(t, "describe", target); !strings.HasSuffix(got, "\n"+service) || !strings.Contains(got, "grpc.reflection.v1.ServerReflection is a service:\n") {
			t.Errorf("all services are printed as\n%s", got)
		}
		if got := succeeds(t, "describe", "-msg-template", target, prefix+"AwaitRequest"); got != message+"\nMessage template:\n{\n  \"id\": \"0\"\n}\n" {
			t.Errorf("the template is printed as\n%s", got)
		}
	})
}

// TestWrongNamesAreExplained checks what the errors say about names that the server does not
// know, and about servers that do not tell.
func TestWrongNamesAreExplained(t *testing.T) {
	target := onOne(t)
	nearOnly := serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.OtherClients(nearcall.WebClients))
	silent := func(srv server) { orderspb.RegisterOrdersServer(srv, shop{}) }
	const noReflection = "the server has no reflection (unknown service grpc.reflection.v1alpha.ServerReflection); its program can add it with reflection.Register(srv)"
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"list", target, "Orders"}, exitFailed, "Symbol not found: Orders; did you mean " + orders + " or "},
		{[]string{"list", target, "nearcall.examples.orders.Order"}, exitFailed, "Service not found: nearcall.examples.orders.Order"},
		{[]string{"list", target, "a b"}, exitFailed, "Symbol not found: a b"},
		{[]string{"describe", target, "nearcall.examples.orders.Ordre"}, exitFailed, "did you mean nearcall.examples.orders.Order"},
		{[]string{"describe", target, "no/such/file.proto"}, exitFailed, "Symbol not found: no.such.file.proto"},
		{[]string{"call", target, "Place"}, exitFailed, "Symbol not found: Place; did you mean " + orders + "/Place?"},
		{[]string{"call", target, orders + "/Plce"}, exitFailed, "Symbol not found: " + orders + ".Plce; did you mean " + orders + "/Place?"},
		{[]string{"call", target, orders}, exitFailed, orders + " is not a method: write it as pkg.Service/Method; 'nearcall describe " + target + "' shows the methods"},
		{[]string{"call", target, "orders.Orders/Place"}, exitFailed, "did you mean " + orders + "/Place?"},
		{[]string{"list", serveNear(t, "tcp:127.0.0.1:0", silent)}, 64 + 12, noReflection},
		{[]string{"list", serveFar(t, silent)}, 64 + 12, noReflection},
		{[]string{"list", "grpc:" + strings.TrimPrefix(nearOnly, "tcp:")}, 64 + 12, "; here that is the target " + nearOnly},
		{[]string{"list", "tcp:127.0.0.1:1"}, 64 + 14, "127.0.0.1:1: connect"},
		{[]string{"list", "127.0.0.1:1"}, 64 + 14, "127.0.0.1:1: connect"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			fails(t, c.code, c.says, c.args...)
		})
	}
}

// fails runs the command, which must exit with code, print nothing on stdout and one line on
// stderr with says in it.
func fails(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	got, stdout, stderr := nearcallCommand(t, args...)
	if got != code || stdout != "" || !strings.Contains(stderr, says) || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "nearcall") {
		t.Errorf("%q: exit code %d, want %d\nstdout %q\nstderr %q\nwant   %q", args, got, code, stdout, stderr, says)
	}
}

// An ending server reports how the calls of reflection end.
type ending struct {
	rpb.ServerReflectionServer
	ends chan<- error
}

func (e ending) ServerReflectionInfo(s rpb.ServerReflection_ServerReflectionInfoServer) error {
	err := e.ServerReflectionServer.ServerReflectionInfo(s)
	e.ends <- err
	return err
}

func TestLookingIsNoErrorOfTheServer(t *testing.T) {
	ends := make(chan error, 1)
	register := func(srv server) {
		orderspb.RegisterOrdersServer(srv, shop{})
		rpb.RegisterServerReflectionServer(srv, ending{reflection.NewServerV1(reflection.ServerOptions{Services: srv}), ends})
	}
	onEveryPath(t, register, func(t *testing.T, target string) {
		for _, args := range [][]string{
			{"list", target}, {"list", target, orders}, {"describe", target}, {"describe", target, orders + "/Place"},
			{"call", target, orders + "/Place", "{}"}, {"__complete", "list", target, ""}, {"list", target, "x.Y"},
		} {
			_, _, _ = nearcallCommand(t, args...)
			if err := <-ends; err != nil {
				t.Errorf("%q: the server sees %v", args, err)
			}
		}
	})
}
