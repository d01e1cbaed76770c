package shm

import (
	"encoding/binary"
	"fmt"
)

// This file has the exchange over the socket before there is shared memory. docs/shm.md
// specifies it.
//
//	offer   Line, length, version, features
//	answer  Line, verdict, length, and either version, features, ring, slabs
//	        or the reason, in UTF-8
//	verdict of the client, which can find that it cannot use what it got
//
// A length is one byte and counts the bytes that follow. Numbers are unsigned LEB128, as in
// the rest of the protocol. A side ignores what follows the last number it knows, so that
// later versions can send more.

// Line is the start of a client's offer and of the server's answer.
const Line = "nearcall/1 shm\n"

// Verdicts.
const (
	takes    = '+'
	declines = '-'
)

// version is the highest version of shared memory that this side speaks. features has a bit
// for each optional feature that it supports; none is defined yet.
const (
	version  = 1
	features = 0
)

// An offer says what a client supports.
type offer struct {
	version  uint64 // the highest that it supports
	features uint64
}

// Terms are a server's choices when it accepts an offer.
type terms struct {
	version  uint64 // the lower of the two
	features uint64 // the features that both support
	layout   layout
}

func appendOffer(b []byte, o offer) []byte {
	body := binary.AppendUvarint(binary.AppendUvarint(nil, o.version), o.features)
	return appendBody(append(b, Line...), body)
}

func parseOffer(body []byte) (o offer, err error) {
	err = parse(body, "offer", &o.version, &o.features)
	if err == nil && o.version == 0 {
		err = fmt.Errorf("%w: there is no version 0", errBroken)
	}
	return o, err
}

// agreed returns the terms on which this side accepts an offer.
func (o offer) agreed() terms {
	return terms{version: min(o.version, version), features: o.features & features, layout: ours}
}

func appendTerms(b []byte, t terms) []byte {
	var body []byte
	for _, v := range []uint64{t.version, t.features, uint64(t.layout.ring), uint64(t.layout.slabs)} {
		body = binary.AppendUvarint(body, v)
	}
	return appendBody(append(append(b, Line...), takes), body)
}

// parseTerms parses terms, and checks that they fit what this side has offered.
func parseTerms(body []byte) (t terms, err error) {
	var ring, slabs uint64
	if err := parse(body, "answer", &t.version, &t.features, &ring, &slabs); err != nil {
		return terms{}, err
	}
	if t.version == 0 || t.version > version || t.features&^uint64(features) != 0 {
		return terms{}, fmt.Errorf("%w: its answer has version %d and features %#x, which were not offered", errBroken, t.version, t.features)
	}
	t.layout = layout{ring: int(min(ring, maxRing+1)), slabs: int(min(slabs, maxSlabs+1))}
	return t, t.layout.check()
}

func appendDecline(b []byte, why string) []byte {
	return appendBody(append(append(b, Line...), declines), []byte(why[:min(len(why), maxBody)]))
}

// maxBody is the most that a one-byte length can count.
const maxBody = 255

func appendBody(b, body []byte) []byte {
	return append(append(b, byte(len(body))), body...)
}

// parse parses the numbers that body begins with, and ignores what follows.
func parse(body []byte, what string, numbers ...*uint64) error {
	for _, v := range numbers {
		n := 0
		if *v, n = binary.Uvarint(body); n <= 0 {
			return fmt.Errorf("%w: its %s is too short, or has a number of more than 64 bits", errBroken, what)
		}
		body = body[n:]
	}
	return nil
}
