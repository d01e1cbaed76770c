// Command conformanceclient makes the calls of the Connect conformance tests with Connect v2's generated
// code over nearcall's transport. connectconformance starts it, writes a ClientCompatRequest for each
// call to its standard input, and reads a ClientCompatResponse for each from its standard output.
//
// The argument is what comes before HOST:PORT in the target of nearcall.NewClient, such as tcp: or dns:///.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/interop/connect/conformancepb"
	"github.com/nearcall/nearcall/interop/connect/internal/delimited"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: conformanceclient PREFIX")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal("conformanceclient: ", err)
	}
}

func run(prefix string) error {
	servers := servers{prefix: prefix}
	defer servers.close()
	var mu sync.Mutex // for standard output
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, 8) // with more, a busy machine fails tests of deadlines
	in := bufio.NewReader(os.Stdin)
	for {
		req := new(pb.ClientCompatRequest)
		if err := delimited.Read(in, req); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		places <- struct{}{}
		running.Go(func() {
			resp := &pb.ClientCompatResponse{TestName: req.TestName}
			if result, err := servers.call(req); err != nil {
				resp.Result = &pb.ClientCompatResponse_Error{Error: &pb.ClientErrorResult{Message: err.Error()}}
			} else {
				resp.Result = &pb.ClientCompatResponse_Response{Response: result}
			}
			mu.Lock()
			defer mu.Unlock()
			if err := delimited.Write(os.Stdout, resp); err != nil {
				log.Fatal("conformanceclient: ", err)
			}
			<-places
		})
	}
}

// A server is what a request says of the server to call. cert is empty without TLS.
type server struct{ address, cert, clientCert, clientKey string }

// servers are the connections to all servers so far.
type servers struct {
	prefix string

	mu    sync.Mutex
	conns map[server]*nearcall.ClientConn
}

// call makes the call that req describes.
func (s *servers) call(req *pb.ClientCompatRequest) (*pb.ClientResponseResult, error) {
	conn, err := s.connect(server{
		address:    net.JoinHostPort(req.Host, strconv.FormatUint(uint64(req.Port), 10)),
		cert:       string(req.ServerTlsCert),
		clientCert: string(req.ClientTlsCreds.GetCert()),
		clientKey:  string(req.ClientTlsCreds.GetKey()),
	})
	if err != nil {
		return nil, err
	}
	return call(conn, req)
}

// connect returns a connection that is ready: the tests of deadlines are strict.
func (s *servers) connect(to server) (*nearcall.ClientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.conns[to]
	if conn == nil {
		creds, err := to.credentials()
		if err != nil {
			return nil, err
		}
		if conn, err = nearcall.NewClient(s.prefix+to.address, nearcall.WithTransportCredentials(creds)); err != nil {
			return nil, err
		}
		if s.conns == nil {
			s.conns = map[server]*nearcall.ClientConn{}
		}
		s.conns[to] = conn
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for conn.Connect(); ; {
		state := conn.GetState()
		if state == connectivity.Ready {
			return conn, nil
		}
		if !conn.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("the connection to %s is in state %v", conn.Target(), state)
		}
	}
}

func (s *servers) close() {
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

func (to server) credentials() (credentials.TransportCredentials, error) {
	if to.cert == "" {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM([]byte(to.cert)) {
		return nil, errors.New("the server's certificate cannot be read")
	}
	if to.clientCert != "" {
		cert, err := tls.X509KeyPair([]byte(to.clientCert), []byte(to.clientKey))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return nearcall.NewTLS(config), nil
}
