package inproc

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
)

var errTest = errors.New("the test says so")

var defaults = Options{Config: &options.NewClient(nil).Connections}

func connect(t *testing.T, a *acceptor) link.Session {
	t.Helper()
	s, err := Connect("orders", defaults, a.accept)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func isDone(s link.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

func TestCloseTellsTheAcceptorOnce(t *testing.T) {
	for name, closes := range map[string]func(s link.Session, a *acceptor) link.Session{
		"client": func(s link.Session, _ *acceptor) link.Session { return s },
		"server": func(_ link.Session, a *acceptor) link.Session { return a.session },
	} {
		t.Run(name, func(t *testing.T) {
			a := &acceptor{}
			s := connect(t, a)
			if isDone(s) || isDone(a.session) {
				t.Fatal("it is done before it began")
			}
			closer := closes(s, a)
			_ = closer.Close(errTest)
			_ = closer.Close(errors.New("later"))
			_ = s.Close(errors.New("later"))
			if len(a.closed) != 1 || a.closed[0] != errTest || a.gone != 1 {
				t.Errorf("the acceptor was told %v, and %d times that nothing is left", a.closed, a.gone)
			}
			if !isDone(s) || !isDone(a.session) {
				t.Error("a side takes more calls")
			}
		})
	}
}

func TestServerThatClosesWhileItAcceptsIsTold(t *testing.T) {
	a := &acceptor{}
	_, err := Connect("orders", defaults, func(s link.Session) link.Acceptor {
		_ = s.Close(errTest)
		return a
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.closed) != 1 || a.closed[0] != errTest || a.gone != 1 {
		t.Errorf("the acceptor was told %v, and %d times that nothing is left", a.closed, a.gone)
	}
}

func TestDrainEndsNothing(t *testing.T) {
	a := &acceptor{}
	s := connect(t, a)
	stream, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
	if err != nil {
		t.Fatal(err)
	}
	a.session.Drain()
	if !isDone(s) || len(a.closed) > 0 {
		t.Errorf("done: %t, the acceptor was told %v", isDone(s), a.closed)
	}
	if err := stream.Send(&link.Frame{EndSend: true}); err != nil {
		t.Error(err)
	}
	_ = s.Close(errTest)
	if len(a.closed) != 1 || a.closed[0] != errTest || a.gone != 1 {
		t.Errorf("the acceptor was told %v, and %d times that nothing is left", a.closed, a.gone)
	}
}

func TestRefusalsReachTheCaller(t *testing.T) {
	s := connect(t, &acceptor{refuse: errTest})
	if err := s.Invoke(t.Context(), s.Peer().NewCall()); err != errTest {
		t.Errorf("Call returns %v", err)
	}
	if stream, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != errTest || stream != nil {
		t.Errorf("Open returns %v, %v", stream, err)
	}
}

func TestAdmitPrecedesEachCall(t *testing.T) {
	admitted := 0
	var refusal error
	a := &acceptor{terms: link.Terms{Window: 100 << 10, Admit: func(context.Context) error {
		admitted++
		return refusal
	}}}
	s := connect(t, a)
	if err := s.Invoke(t.Context(), s.Peer().NewCall()); err != nil {
		t.Error(err)
	}
	if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
		t.Error(err)
	}
	if admitted != 2 {
		t.Errorf("%d calls were admitted, want 2", admitted)
	}
	if up := a.streams[0].(*streamEnd).in; up.window != 100<<10 {
		t.Errorf("the caller's window is %d bytes", up.window)
	}
	refusal = context.Canceled
	if err := s.Invoke(t.Context(), s.Peer().NewCall()); err != context.Canceled {
		t.Errorf("Call returns %v", err)
	}
	if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != context.Canceled || len(a.streams) != 1 {
		t.Errorf("Open returns %v, and the server has %d streams", err, len(a.streams))
	}
}

func TestPeerIsLocalAndPrivate(t *testing.T) {
	a := &acceptor{}
	s := connect(t, a)
	for _, p := range []*link.Peer{s.Peer(), a.session.Peer()} {
		if !p.Local || !p.OneShot || p.Addr.String() != "orders" || p.AuthInfo.AuthType() != "local" {
			t.Errorf("the peer is %+v", p)
		}
		if err := credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity); err != nil {
			t.Error(err)
		}
	}
}

func TestAServerCannotCallAClientThatTakesNoCalls(t *testing.T) {
	a := &acceptor{}
	connect(t, a)
	says(t, a.session.Invoke(t.Context(), new(link.UnaryCall)), "takes no calls")
	_, err := a.session.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
	says(t, err, "takes no calls")
}
