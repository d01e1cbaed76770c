package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	connect2 "connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// httpClient returns a client that speaks the version of a cell. Over TLS, one that speaks HTTP/2
// offers HTTP/1.1 as well.
func httpClient(c *cell) (client *http.Client, end func()) {
	tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: c.config.Clone()}
	tr.Protocols.SetHTTP1(c.Version == one || c.TLS)
	tr.Protocols.SetHTTP2(c.Version == two && c.TLS)
	tr.Protocols.SetUnencryptedHTTP2(c.Version == two && !c.TLS)
	return &http.Client{Transport: tr}, tr.CloseIdleConnections
}

// listed receives a stream of orders until its end.
func listed(recv func() error) error {
	for n := 0; ; n++ {
		switch err := recv(); {
		case errors.Is(err, io.EOF) && n == listLength:
			return nil
		case err != nil:
			return fmt.Errorf("after %d orders: %w", n, err)
		}
	}
}

// haggle makes offers, each after the answer to the last one.
func haggle(send func(*orderspb.Offer) error, recv func() (*orderspb.Answer, error), closeSend func() error) error {
	for _, offer := range offers {
		if err := send(offer); err != nil {
			return fmt.Errorf("bidi: %w", err)
		}
		if answer, err := recv(); err != nil || answer.GetAskCents() != offer.GetCents() {
			return fmt.Errorf("bidi: %v, %w", answer, err)
		}
	}
	if err := closeSend(); err != nil {
		return fmt.Errorf("bidi: %w", err)
	}
	if _, err := recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bidi: the end is %w", err)
	}
	return nil
}

func callConnect1(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	h, end := httpClient(c)
	defer end()
	opts := map[string][]connect.ClientOption{grpcWeb: {connect.WithGRPCWeb()}, grpcProtocol: {connect.WithGRPC()}}[c.Protocol]
	url := c.url("http")
	reply, err := connect.NewClient[orderspb.PlaceRequest, orderspb.Order](h, url+placePath, opts...).CallUnary(ctx, connect.NewRequest(toPlace))
	if err != nil {
		return "", err
	}
	alpn, err := placed(reply.Msg)
	if err != nil {
		return "", err
	}
	orders, err := connect.NewClient[orderspb.ListRequest, orderspb.Order](h, url+listPath, opts...).CallServerStream(ctx, connect.NewRequest(toList))
	if err != nil {
		return "", err
	}
	defer orders.Close()
	err = listed(func() error {
		if orders.Receive() {
			return nil
		}
		return errors.Join(orders.Err(), io.EOF)
	})
	if err != nil || c.Version == one {
		return alpn, err
	}
	both := connect.NewClient[orderspb.Offer, orderspb.Answer](h, url+hagglePath, opts...).CallBidiStream(ctx)
	defer both.CloseResponse()
	return alpn, haggle(both.Send, both.Receive, both.CloseRequest)
}

func callConnect2(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	h, end := httpClient(c)
	defer end()
	opts := map[string][]connecthttp.Option{grpcWeb: {connecthttp.WithGRPCWeb()}, grpcProtocol: {connecthttp.WithGRPC()}}[c.Protocol]
	client := connect2.NewClient(connecthttp.NewTransport(h, c.url("http"), opts...))
	order := new(orderspb.Order)
	if err := client.CallUnary(ctx, connect2.Spec{Procedure: placePath}, toPlace, order); err != nil {
		return "", err
	}
	alpn, err := placed(order)
	if err != nil {
		return "", err
	}
	orders, err := client.CallServerStream(ctx, connect2.Spec{Procedure: listPath, StreamType: connect2.StreamTypeServer}, toList)
	if err != nil {
		return "", err
	}
	defer orders.Close()
	if err := listed(func() error { return orders.Receive(new(orderspb.Order)) }); err != nil || c.Version == one {
		return alpn, err
	}
	both, err := client.CallClientStream(ctx, connect2.Spec{Procedure: hagglePath, StreamType: connect2.StreamTypeBidi})
	if err != nil {
		return "", err
	}
	defer both.Close()
	return alpn, haggle(func(o *orderspb.Offer) error { return both.Send(o) }, func() (*orderspb.Answer, error) {
		answer := new(orderspb.Answer)
		return answer, both.Receive(answer)
	}, both.CloseSend)
}
