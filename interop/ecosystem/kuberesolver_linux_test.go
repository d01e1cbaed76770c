package ecosystem

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sercand/kuberesolver/v6"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

// kubernetes answers a watch of the EndpointSlices of the service orders in the namespace shop with
// the lists of pods that it receives.
func kubernetes(t *testing.T, port int, changes <-chan []string) string {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Path + "?" + r.URL.RawQuery; got != "/apis/discovery.k8s.io/v1/watch/namespaces/shop/endpointslices?labelSelector=kubernetes.io/service-name=orders" {
			t.Errorf("the resolver asks for %s", got)
		}
		for kind := kuberesolver.Added; ; kind = kuberesolver.Modified {
			select {
			case <-r.Context().Done():
				return
			case pods := <-changes:
				ready := true
				slice := kuberesolver.EndpointSlice{Ports: []kuberesolver.EndpointPort{{Name: "grpc", Port: port}}}
				for _, pod := range pods {
					slice.Endpoints = append(slice.Endpoints, kuberesolver.Endpoint{Addresses: []string{pod}, Conditions: kuberesolver.EndpointConditions{Ready: &ready}})
				}
				_ = json.NewEncoder(w).Encode(kuberesolver.Event{Type: kind, Object: slice})
				w.(http.Flusher).Flush()
			}
		}
	}))
	t.Cleanup(api.CloseClientConnections)
	t.Cleanup(api.Close)
	return api.URL
}

// kuberesolver finds pods, those that come later as well.
func TestPodsThatKuberesolverFinds(t *testing.T) {
	first, err := net.Listen("tcp", "127.4.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := first.Addr().(*net.TCPAddr).Port
	var pods []string
	for i := range 3 {
		pod, lis := fmt.Sprintf("127.4.0.%d", i+1), first
		if i > 0 {
			if lis, err = net.Listen("tcp", fmt.Sprintf("%s:%d", pod, port)); err != nil {
				t.Fatal(err)
			}
		}
		pods = append(pods, pod)
		srv := nearcall.NewServer()
		pb.RegisterShopServer(srv, &shop{})
		go srv.Serve(lis)
		t.Cleanup(srv.Stop)
	}
	changes := make(chan []string, 1)
	changes <- pods[:2]
	r := kuberesolver.NewBuilder(kuberesolver.NewInsecureK8sClient(kubernetes(t, port, changes)), "kubernetes")
	conn, err := nearcall.NewClient("kubernetes:///orders.shop:grpc", nearcall.WithResolvers(r),
		nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// reach calls until exactly the pods of want are called.
	reach := func(want []string) {
		t.Helper()
		leak.Within(t, 10*time.Second, fmt.Sprintf("calls to %v", want), func() {
			for {
				var got []string
				for range 3 * len(pods) {
					var p peer.Peer
					if _, err := pb.NewShopClient(conn).Get(t.Context(), &pb.GetRequest{Name: "tea"}, grpc.Peer(&p)); err != nil {
						t.Error(err)
						return
					}
					if pod, _, _ := strings.Cut(p.Addr.String(), ":"); !slices.Contains(got, pod) {
						got = append(got, pod)
					}
				}
				if slices.Sort(got); slices.Equal(got, want) {
					return
				}
			}
		})
	}
	reach(pods[:2])
	changes <- pods[1:]
	reach(pods[1:])
}
