package ecosystem

import (
	"testing"

	channelz "google.golang.org/grpc/channelz/grpc_channelz_v1"
	channelzservice "google.golang.org/grpc/channelz/service"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// channelz, registered with a nearcall server, has the connections and calls of ordinary gRPC
// clients. Package metrics has the calls of all clients.
func TestChannelzHasOrdinaryClientsAndCallstatsHasAll(t *testing.T) {
	calls := metrics.NewCalls()
	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
	pb.RegisterShopServer(srv, &shop{})
	channelzservice.RegisterChannelzServiceToServer(srv)
	calls.Register(srv)

	near := srv.Client()
	defer near.Close()
	z := channelz.NewChannelzClient(near)
	started := func() (calls, sockets int64) {
		t.Helper()
		servers, err := z.GetServers(t.Context(), &channelz.GetServersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range servers.GetServer() {
			calls += s.GetData().GetCallsStarted()
			list, err := z.GetServerSockets(t.Context(), &channelz.GetServerSocketsRequest{ServerId: s.GetRef().GetServerId()})
			if err != nil {
				t.Fatal(err)
			}
			sockets += int64(len(list.GetSocketRef()))
		}
		return calls, sockets
	}
	callsBefore, socketsBefore := started()
	buy(t, near)
	if c, s := started(); c != callsBefore || s != socketsBefore {
		t.Errorf("channelz has %d calls and %d sockets more for nearcall's client, want none", c-callsBefore, s-socketsBefore)
	}
	buy(t, ordinaryClient(t, srv))
	if c, s := started(); c != callsBefore+3 || s != socketsBefore+1 {
		t.Errorf("channelz has %d calls and %d sockets more for an ordinary client, want 3 and 1", c-callsBefore, s-socketsBefore)
	}

	stats, err := metricspb.NewMetricsClient(near).Get(t.Context(), &metricspb.GetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	begun := map[string]uint64{}
	for _, m := range stats.GetMethods() {
		begun[m.GetName()] = m.GetBegun()
	}
	if get, list := begun["/"+service+"/Get"], begun["/"+service+"/List"]; get != 4 || list != 2 {
		t.Errorf("metrics has %v, want 4 calls of Get and 2 of List", begun)
	}
}
