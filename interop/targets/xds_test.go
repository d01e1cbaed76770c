package targets

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xdsserver "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A control is an xDS control plane for the target xds:///svc.
type control struct {
	c       *C
	cache   cache.SnapshotCache
	address string
	version int
	certs   string // the configs of certificate providers in JSON; "" for none
}

// Control starts a control plane, which is an ordinary server of gRPC.
func (c *C) Control() *control {
	x := &control{c: c, cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil)}
	lis, err := net.Listen("tcp", nextIP()+":0")
	if err != nil {
		panic(err)
	}
	x.address = lis.Addr().String()
	c.Call(x.address, "CONTROL")
	srv := grpc.NewServer()
	ctx, cancel := context.WithCancel(context.Background())
	discovery.RegisterAggregatedDiscoveryServiceServer(srv, xdsserver.NewServer(ctx, x.cache, nil))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis)
	}()
	c.Cleanup(func() {
		cancel()
		srv.Stop()
		<-served
	})
	return x
}

// Resolver returns a resolver that asks the control plane.
func (x *control) Resolver() resolver.Builder {
	r, err := xds.NewXDSResolverWithConfigForTesting([]byte(fmt.Sprintf(
		`{"xds_servers":[{"server_uri":%q,"channel_creds":[{"type":"insecure"}],"server_features":["xds_v3"]}],"certificate_providers":{%s},"node":{"id":"node"}}`, x.address, x.certs)))
	if err != nil {
		panic(err)
	}
	return r
}

// Set tells clients about the routes, and the clusters and endpoints that they name.
func (x *control) Set(routes []*routepb.Route, clusters []*clusterpb.Cluster, endpoints []*endpointpb.ClusterLoadAssignment) {
	x.version++
	resources := map[resource.Type][]types.Resource{
		resource.ListenerType: {listener()},
		resource.RouteType:    {&routepb.RouteConfiguration{Name: "route", VirtualHosts: []*routepb.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: routes}}}},
	}
	for _, c := range clusters {
		resources[resource.ClusterType] = append(resources[resource.ClusterType], c)
	}
	for _, e := range endpoints {
		resources[resource.EndpointType] = append(resources[resource.EndpointType], e)
	}
	snapshot, err := cache.NewSnapshot(fmt.Sprint(x.version), resources)
	if err == nil {
		err = x.cache.SetSnapshot(context.Background(), "node", snapshot)
	}
	if err != nil {
		panic(err)
	}
}

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

func fromADS() *corepb.ConfigSource {
	return &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}}}
}

// listener has the filters "fault", which does nothing unless a route says so, and "router".
func listener() *listenerpb.Listener {
	return &listenerpb.Listener{Name: "svc", ApiListener: &listenerpb.ApiListener{ApiListener: packed(&hcmpb.HttpConnectionManager{
		RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{RouteConfigName: "route", ConfigSource: fromADS()}},
		HttpFilters: []*hcmpb.HttpFilter{
			{Name: "fault", ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: packed(&faultpb.HTTPFault{})}},
			{Name: "router", ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: packed(&routerpb.Router{})}},
		},
	})}}
}

func cluster(name string) *clusterpb.Cluster {
	return &clusterpb.Cluster{Name: name, ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS}, EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{EdsConfig: fromADS()}}
}

// A locality has servers, and a priority. 0 is the first.
type locality struct {
	servers  []*Server
	priority uint32
	weight   uint32 // 0 means 1
}

func assignment(cluster string, localities ...locality) *endpointpb.ClusterLoadAssignment {
	out := &endpointpb.ClusterLoadAssignment{ClusterName: cluster}
	for i, l := range localities {
		one := &endpointpb.LocalityLbEndpoints{Locality: &corepb.Locality{Region: fmt.Sprint("region", i)}, Priority: l.priority, LoadBalancingWeight: wrapperspb.UInt32(max(l.weight, 1))}
		for _, s := range l.servers {
			host, port, _ := net.SplitHostPort(s.Addr)
			n, _ := strconv.Atoi(port)
			one.LbEndpoints = append(one.LbEndpoints, &endpointpb.LbEndpoint{HostIdentifier: &endpointpb.LbEndpoint_Endpoint{Endpoint: &endpointpb.Endpoint{
				Address: &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{Address: host, PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: uint32(n)}}}}}}})
		}
		out.Endpoints = append(out.Endpoints, one)
	}
	return out
}

// Certificates adds a certificate provider, "files", of the authority and a client's certificate.
func (x *control) Certificates() {
	dir, err := os.MkdirTemp("", "targets")
	if err != nil {
		panic(err)
	}
	x.c.Cleanup(func() { os.RemoveAll(dir) })
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			panic(err)
		}
		return path
	}
	ca := authority()
	own := certificate(&x509.Certificate{DNSNames: []string{"client.test"}}, &ca)
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		panic(err)
	}
	x.certs = fmt.Sprintf(`"files":{"plugin_name":"file_watcher","config":{"certificate_file":%q,"private_key_file":%q,"ca_certificate_file":%q}}`,
		write("cert", "CERTIFICATE", own.Certificate[0]), write("key", "PRIVATE KEY", key), write("ca", "CERTIFICATE", ca.Certificate[0]))
}

// secured returns a cluster whose servers must have a certificate for name, and get the client's if it is shown.
func secured(cluster *clusterpb.Cluster, name string, shown bool) *clusterpb.Cluster {
	common := &tlspb.CommonTlsContext{ValidationContextType: &tlspb.CommonTlsContext_ValidationContext{ValidationContext: &tlspb.CertificateValidationContext{
		CaCertificateProviderInstance: &tlspb.CertificateProviderPluginInstance{InstanceName: "files"},
		//lint:ignore SA1019 grpc-go reads it
		MatchSubjectAltNames: []*matcherpb.StringMatcher{{MatchPattern: &matcherpb.StringMatcher_Exact{Exact: name}}},
	}}}
	if shown {
		common.TlsCertificateProviderInstance = &tlspb.CertificateProviderPluginInstance{InstanceName: "files"}
	}
	cluster.TransportSocket = &corepb.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: packed(&tlspb.UpstreamTlsContext{CommonTlsContext: common})}}
	return cluster
}

// route sends calls with a header, or all if header is empty, where action says.
func route(header string, action *routepb.RouteAction) *routepb.Route {
	m := &routepb.RouteMatch{PathSpecifier: &routepb.RouteMatch_Prefix{Prefix: "/"}}
	if header != "" {
		m.Headers = []*routepb.HeaderMatcher{{Name: header, HeaderMatchSpecifier: &routepb.HeaderMatcher_StringMatch{
			StringMatch: &matcherpb.StringMatcher{MatchPattern: &matcherpb.StringMatcher_Exact{Exact: "yes"}}}}}
	}
	return &routepb.Route{Match: m, Action: &routepb.Route_Route{Route: action}}
}

func toCluster(name string) *routepb.RouteAction {
	return &routepb.RouteAction{ClusterSpecifier: &routepb.RouteAction_Cluster{Cluster: name}}
}
