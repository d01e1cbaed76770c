package call

import (
	"cmp"
	"context"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// fillHeader sets o for the attempt a, whose session was picked.
func (c *Client) fillHeader(o *link.CallHeader, a *attempt, ci *callInfo) error {
	authority := cmp.Or(ci.authority, a.authority)
	if authority != "" {
		if err := vouch(a.peer, authority); err != nil {
			return err
		}
	}
	o.Profile = c.profileOf(ci, cmp.Or(authority, a.host), a.peer)
	o.Method = ci.method
	o.Metadata = a.md
	o.MaxReply = ci.maxRecv
	if len(c.cfg.Creds) > 0 || ci.creds != nil {
		auth, err := c.authMetadata(a, ci, o.Authority)
		if err != nil {
			return err
		}
		for k, v := range a.md {
			auth[k] = append(auth[k], v...)
		}
		o.Metadata = auth
	}
	if ci.retry != nil {
		o.Metadata = ci.retry.addPreviousAttempts(o.Metadata)
	}
	// The deadline may have passed before the context's timer fires.
	if deadline, ok := a.ctx.Deadline(); ok {
		if time.Until(deadline) <= 0 {
			return contextStatus(context.DeadlineExceeded)
		}
		o.Deadline = deadline
	}
	return nil
}

// profileOf returns the profile of a call. It also sets ci.codec according to whether
// messages are shared with p.
func (c *Client) profileOf(ci *callInfo, authority string, p *link.Peer) *link.Profile {
	profile := c.profile
	if c.cfg.Shared {
		ci.codec = codec.Unshared(ci.codec)
		if p.Shares && ci.codec == codec.Proto() || p.SharesBytes && ci.codec != codec.Proto() {
			ci.codec = codec.Sharing(ci.codec)
			profile = c.shared
		}
	}
	if authority == "" && ci.subtype == "" && ci.encoding == "" && ci.accept == nil {
		return profile
	}
	own := *profile
	if authority != "" {
		own.Authority = authority
	}
	own.ContentSubtype, own.Encoding, own.Accept = ci.subtype, ci.encoding, ci.accepts(own.Accept)
	return own.Check()
}
