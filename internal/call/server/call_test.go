package server

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

// The text of an error that a user sees has one status, not a status within another.
func TestARefusedCallHasOneStatus(t *testing.T) {
	for _, err := range []error{refused("the server was stopped"), errStopped} {
		here := call.LinkStatus(err)
		for _, got := range []error{here, call.LinkStatus(link.Unprocessed{Err: errors.New(err.Error())})} { // in process, and from another
			if st := status.Convert(got); st.Code() != codes.Unavailable || st.Message() != "the server was stopped" {
				t.Errorf("got %v with %q", st.Code(), st.Message())
			}
		}
	}
}

func TestWhatWasNotProcessedSaysSo(t *testing.T) {
	no := status.Error(codes.Unavailable, "no")
	for name, err := range map[string]error{"refused": refused("no"), "unprocessed": link.Unprocessed{Err: no}} {
		if !errors.Is(err, link.ErrUnprocessed) {
			t.Errorf("%s: nobody would try again", name)
		}
	}
	if !errors.Is(link.Unprocessed{Err: no}, no) {
		t.Error("the cause is lost")
	}
}
