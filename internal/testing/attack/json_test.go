//go:build linux

package attack

import (
	"strings"

	_ "google.golang.org/protobuf/types/known/fieldmaskpb" // for json-values
	_ "google.golang.org/protobuf/types/known/structpb"
	_ "google.golang.org/protobuf/types/known/wrapperspb"
)

// Attacks with JSON that takes long to decode. Their calls are to Take, whose request is a
// google.protobuf.Any and so may hold any of protobuf's own types.
var jsonAttacks = []*Attack{
	{
		Name: "json-any", Path: overTCP, Full: 40, Short: 1,
		What:   "%s bodies of JSON over HTTP/1.1, messages of google.protobuf.Any in others: 1 MiB in 8, 4 kB in 97, 1 MiB in 50, and 3,000 of them plain and compressed",
		Before: "30 s of CPU for one body, compressed to 1,269 bytes",
		Known:  &Excuse{CPU: 400, Why: "protobuf reads what is in an Any once more for each one around it; what it reads again is limited to 8 times the message and 256 KiB"},
		Run:    nestedAnys,
	},
	{
		Name: "json-any-own", Path: overTCP, Full: 400, Short: 5,
		What:   "%s calls in nearcall's own protocol with 50 kB of JSON, messages of google.protobuf.Any in 8 and in 1,200 others alternately",
		Before: "0.9 s of CPU for each of the latter",
		Known:  &Excuse{CPU: 400, Why: "as above"},
		Run:    nestedAnysOfOwn,
	},
	{
		Name: "json-values", Path: overTCP, Full: 80, Short: 1,
		What:   "%s bodies of 1 MiB of JSON over HTTP/1.1: Struct, ListValue, repeated names, FieldMask, base64, escapes, a string for a number",
		Before: "not measured",
		Known:  &Excuse{CPU: 400, Why: "protobuf takes 2 to 230 ns for a byte of JSON, and the attacker only writes prepared bytes"},
		Run:    func(a *Attacker) error { return a.flood(takes(slowValues())...) },
	},
	{
		Name: "json-numbers", Path: overTCP, Full: 12, Short: 1,
		What:   "%s bodies of 1 MiB of JSON over HTTP/1.1: numbers of a million digits, with exponents of a million digits, and 4.9e-324",
		Before: "not measured",
		Known:  &Excuse{CPU: 2_000, Why: "Go takes 14 µs to read a number so close to 0, and less than 100 ns for a usual one; MaxRecvMsgSize bounds a message"},
		Run:    func(a *Attacker) error { return a.flood(takes(slowNumbers())...) },
	},
}

// takes returns calls to Take with these messages.
func takes(messages []codeAndText) []codeAndText {
	var calls []codeAndText
	for _, m := range messages {
		calls = append(calls, codeAndText{m.code, posted("Take", typeJSON, m.text)})
	}
	return calls
}

// inAny returns the JSON of a google.protobuf.Any with a value of one of protobuf's own types.
func inAny(name, value string) string {
	return `{"@type":"/google.protobuf.` + name + `","value":` + value + "}"
}

// inAnys returns value in n messages of google.protobuf.Any, each in the next.
func inAnys(n int, value string) string {
	before, after, _ := strings.Cut(inAny("Any", "|"), "|")
	return strings.Repeat(before, n) + value + strings.Repeat(after, n)
}

// filled returns about n bytes of JSON: repeated between the others, as often as fits.
func filled(n int, before, repeated, after string) string {
	return before + strings.Repeat(repeated, n/len(repeated)) + after
}

func nestedAnys(a *Attacker) error {
	zeros := filled(1<<20, `{"x":[`, "0,", "0]}")
	calls := takes([]codeAndText{{200, inAnys(8, zeros)}, {200, inAnys(97, "{}")}, {400, inAnys(50, zeros)}, {400, inAnys(3_000, "{}")}})
	packed := posted("Take", typeJSON, compressed(inAnys(3_000, "{}")), "Content-Encoding: gzip")
	return a.flood(append(calls, codeAndText{400, packed})...)
}

func nestedAnysOfOwn(a *Attacker) error {
	const size = 50_000
	json := profile
	json.ContentSubtype = "json"
	calls := [...]string{inAnys(8, filled(size, `{"x":[`, "0,", "0]}")), inAnys(1_200, "{}")}
	p, err := a.dial(a.over)
	if err != nil {
		return err
	}
	if err := p.greet(1<<20, 1<<20); err != nil {
		return err
	}
	open := func(b []byte, i int) []byte {
		return p.openAs(&json, b, "Take", request{message: true, bytes: []byte(calls[i%len(calls)]), ends: true})
	}
	if err := p.write(open(nil, 0)); err != nil {
		return err
	}
	if err := p.ended(p.last); err != nil { // the server would seem to withstand what it only refuses
		return err
	}
	p.drain()
	next := 0
	return p.repeat(a.Count, func(b []byte) []byte {
		next++
		return open(b, next)
	})
}

const mebibyte = 1 << 20

// slowValues and slowNumbers are functions and not variables, as the server is the same program and
// must not have the attacker's messages in its heap.
func slowValues() []codeAndText {
	return []codeAndText{
		{200, inAny("ListValue", filled(mebibyte, "[", "[],", "0]"))},
		{200, inAny("ListValue", filled(mebibyte, "[", "{},", "0]"))},
		{200, inAny("Value", filled(mebibyte, "[", `"",`, "0]"))},
		{400, inAny("Struct", filled(mebibyte, "{", `"a":0,`, `"z":0}`))},
		{200, filled(mebibyte, `{"@type":"/grpc.testing.Empty",`, `"a":0,`, `"z":0}`)},
		{200, inAny("FieldMask", filled(mebibyte, `"`, "a,", `b"`))},
		{200, inAny("FieldMask", filled(mebibyte, `"`, "A", `"`))},
		{200, inAny("BytesValue", filled(mebibyte, `"`, "AAAA", `"`))},
		{400, inAny("BytesValue", filled(mebibyte, `"`, "AAAA", `*"`))},
		{200, inAny("StringValue", filled(mebibyte, `"`, `\u0041`, `"`))},
		{200, inAny("StringValue", filled(mebibyte, `"`, `\ud83d\ude00`, `"`))},
		{400, inAny("Int32Value", filled(mebibyte, `"`, "0", `"`))},
	}
}

func slowNumbers() []codeAndText {
	return []codeAndText{
		{200, inAny("Int64Value", filled(mebibyte, "1", "0", "e-1048570"))},
		{400, inAny("Int64Value", filled(mebibyte, "1e", "9", ""))},
		{200, inAny("DoubleValue", filled(mebibyte, "0.", "0", "1"))},
		{400, inAny("DoubleValue", filled(mebibyte, "1e", "9", ""))},
		{200, inAny("ListValue", filled(mebibyte, "[", "4.9e-324,", "0]"))},
		{200, inAny("ListValue", filled(mebibyte, "[", `"4.9e-324",`, "0]"))},
	}
}
