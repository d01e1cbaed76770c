package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

// Invoke makes a unary call.
func (c *Client) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	opts = combine(c.opts.DefaultOptions, opts)
	if c.unary != nil {
		return c.unary(ctx, method, req, reply, c.cfg.GRPC(), c.invoke, opts...)
	}
	return c.invoke(ctx, method, req, reply, nil, opts...)
}

func (c *Client) invoke(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	ci := callInfo{ctx: ctx, method: method, desc: unaryDesc}
	cancel, err := c.prepareCall(&ci, opts)
	defer cancel()
	if err != nil {
		return err
	}
	if ci.through != nil {
		return ci.through.Invoke(ctx, method, req, reply, opts...)
	}
	return c.invokePrepared(&ci, req, reply)
}

// invokePrepared makes a call for which prepareCall has set ci. It has one defer: the compiler makes
// the code of defers inline only if their number times that of the returns is at most 15.
func (c *Client) invokePrepared(ci *callInfo, req, reply any) error {
	defer ci.end()
	var a attempt
	err := c.beginAttempt(ci.ctx, &a, ci)
	if err != nil {
		ci.onFinished(err)
		return err
	}
	var u *link.UnaryCall
	if err = a.pickSession(c, ci); err == nil {
		if a.peer = a.session.Peer(); !a.peer.OneShot {
			return c.invokeStream(ci, a, failure{}, req, reply)
		}
		u = newCall(a.peer)
		err = c.fillHeader(&u.CallHeader, &a, ci)
	}
	if err != nil {
		return c.invokeStream(ci, a, failure{reason: err}, req, reply)
	}
	err = c.invokeOnce(&a, ci, u, req, reply)
	if err == link.ErrNoCall {
		a.header = &u.CallHeader
		return c.invokeStream(ci, a, failure{}, req, reply)
	}
	if err != nil || u.Status != nil {
		if why := ci.unaryFailure(u, req, err); why.failed() {
			if !isUnprocessed(err) {
				a.header = &u.CallHeader
			}
			return c.invokeStream(ci, a, why, req, reply)
		}
	}
	err = c.finishUnary(ci, &a, u, reply, err)
	if ci.reports {
		ci.fillOptions(a.peer, u.Header, u.Trailer)
		ci.onFinished(err)
	}
	freeCall(u, a.peer)
	return err
}

// end frees what a unary call has held, and commits it.
func (ci *callInfo) end() {
	if ci.given != nil {
		ci.given.Free()
	}
	ci.committed()
}

// invokeOnce makes the call with Session.Invoke and returns its error. It sets ci.given if it
// encodes the request.
func (c *Client) invokeOnce(a *attempt, ci *callInfo, u *link.UnaryCall, req, reply any) (err error) {
	u.Codec, u.Request, u.Reply = ci.codec, req, reply
	a.stats.OutHeader(&u.CallHeader, a.peer)
	msg := call.MessageOf(req, ci.codec)
	if call.MustEncode(&msg, ci.codec, a.peer, a.stats != nil) {
		if ci.given, err = call.EncodeOnce(&msg, a.peer); err != nil {
			return err
		}
		msg, u.Request = *ci.given, ci.given
	}
	if err := call.CheckSize(&msg, ci.maxSend, ci.encoding, a.peer); err != nil {
		return call.Final{Err: err}
	}
	if _, packed := msg.Compressed(ci.encoding); packed {
		once := msg
		u.Request = &once
	}
	a.stats.Sent(req, &msg)
	ctx, cancel := a.withTimer(u.Deadline)
	defer cancel()
	err = link.Invoke(ctx, a.session, u)
	if err == nil && u.Late {
		u.End, err = link.End{}, context.DeadlineExceeded
	}
	return err
}

// finishUnary returns the error of an attempt and reports its results to stats handlers.
// err is the error of Session.Invoke.
func (c *Client) finishUnary(ci *callInfo, a *attempt, u *link.UnaryCall, reply any, err error) error {
	answered := err == nil
	if answered {
		u.Status = statusWith(u.Status, u.Trailer)
	}
	local := err != nil || u.ReplyError != nil || u.Status == nil
	err = unaryError(u, err)
	if len(ci.accept) > 0 {
		if refused := ci.checkReply(u.Header); refused != nil {
			err, local = refused, true
		}
	}
	if !local {
		ci.calleeEnded()
	}
	if answered && (a.stats != nil || a.done != nil || ci.reports) {
		u.Trailer = call.FullTrailer(&u.End, u.Header, ci.subtype)
	}
	if s := a.stats; s != nil {
		if u.Header != nil {
			s.InHeader(u.Header, ci.subtype)
		}
		if u.Replied && u.ReplyError == nil {
			s.Received(reply, ci.codec, u.ReplySize)
		}
		if answered {
			s.InTrailer(u.Trailer)
		}
	}
	a.header = &u.CallHeader
	a.reportEnd(err, u.Trailer, answered || u.Header != nil)
	return err
}

// invokeStream makes a unary call as a stream of one message each way. a is the call's first
// attempt, which has no stream yet or has failed with why.
func (c *Client) invokeStream(ci *callInfo, a attempt, why failure, req, reply any) error {
	info := new(callInfo) // a copy, so that ci does not escape in calls without a stream
	*info = *ci
	s := &clientStream{client: c, info: info, firstAttempt: a}
	if info.given != nil {
		s.given = info.given.Data().Materialize() // a copy: an attempt in this process frees its reference
		info.given = nil
	}
	if a.stats != nil {
		a.stats.SkipSent = a.header != nil
	}
	if err := s.openFirstAttempt(why); err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil {
		return err
	}
	return s.RecvMsg(reply)
}
