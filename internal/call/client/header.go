package client

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

// hasCreds reports whether credentials add to the metadata of a call.
func (c *Client) hasCreds(ci *callInfo) bool { return len(c.opts.PerRPC) > 0 || ci.creds != nil }

// authMetadata returns the metadata that the credentials of the connection and of the
// call add to a request to authority.
func (c *Client) authMetadata(ctx context.Context, p *link.Peer, ci *callInfo, authority string) (metadata.MD, error) {
	ctx = credentials.NewContextWithRequestInfo(ctx, credentials.RequestInfo{Method: ci.method, AuthInfo: p.AuthInfo})
	audience := audience(authority, ci.method)
	md := make(metadata.MD)
	for _, creds := range c.opts.PerRPC {
		auth, err := authOf(ctx, creds, audience, p, codes.Unauthenticated)
		if err != nil {
			return nil, err
		}
		for k, v := range auth {
			md[k] = []string{v} // the last credentials that set a key win
		}
	}
	if ci.creds != nil {
		auth, err := authOf(ctx, ci.creds, audience, p, codes.Internal)
		if err != nil {
			return nil, err
		}
		for k, v := range auth {
			md[k] = append(md[k], v)
		}
	}
	return md, nil
}

// vouch returns an error if a call to p must not override the connection's authority with the
// given one. With TLS, the server's certificate must be valid for it: otherwise the caller would
// trust a server that cannot prove the name.
func vouch(p *link.Peer, authority string) error {
	v, ok := p.AuthInfo.(credentials.AuthorityValidator)
	if !ok {
		kind := "none"
		if p.AuthInfo != nil {
			kind = p.AuthInfo.AuthType()
		}
		return status.Errorf(codes.Unavailable, "credentials type %q does not implement the AuthorityValidator interface, but authority override specified with CallAuthority call option", kind)
	}
	if err := v.ValidateAuthority(authority); err != nil {
		return status.Errorf(codes.Unavailable, "failed to validate authority %q : %v", authority, err)
	}
	return nil
}

// audience returns the URI of a method's service, for which credentials are requested.
func audience(authority, method string) string {
	host := strings.TrimSuffix(authority, ":443")
	if slash := strings.LastIndexByte(method, '/'); slash >= 0 {
		method = method[:slash]
	}
	return "https://" + host + method
}

// authOf returns the metadata that creds add to a request. code is used for an error of
// creds that is not a status error.
func authOf(ctx context.Context, creds credentials.PerRPCCredentials, audience string, p *link.Peer, code codes.Code) (map[string]string, error) {
	if creds.RequireTransportSecurity() && (p.AuthInfo == nil || credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity) != nil) {
		return nil, status.Error(codes.Unauthenticated, "transport: cannot send secure credentials on an insecure connection")
	}
	data, err := creds.GetRequestMetadata(ctx, audience)
	if err != nil {
		if st, ok := status.FromError(err); ok {
			if IsControlPlaneOnly(st.Code()) {
				return nil, status.Errorf(codes.Internal, "transport: received per-RPC creds error with illegal status: %v", err)
			}
			return nil, err
		}
		return nil, status.Errorf(code, "transport: per-RPC creds failed due to error: %v", err)
	}
	auth := make(map[string]string, len(data))
	for k, v := range data {
		k = strings.ToLower(k)
		if err := call.ValidatePair(k, v); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if !call.Reserved(k) {
			auth[k] = v
		}
	}
	return auth, nil
}

// IsControlPlaneOnly reports whether code is one that credentials, pickers and config selectors
// must not return (gRFC A54).
func IsControlPlaneOnly(code codes.Code) bool {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists,
		codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.DataLoss:
		return true
	}
	return false
}
