package link

import "testing"

func TestTextsOfHTTP2(t *testing.T) {
	for c := range 256 {
		if got, want := ValidText("a"+string([]byte{byte(c)})+"b"), c >= 0x20 && c != 0x7f || c == '\t'; got != want {
			t.Errorf("%#x: %v", c, got)
		}
	}
	if !ValidText("") {
		t.Error("an empty text is not valid")
	}
}

func TestAProfileNamesWhatIsInvalid(t *testing.T) {
	good := Profile{Authority: "a", UserAgent: "b/1 c/2", ContentSubtype: "d", Encoding: "e", Accept: "e,f"}
	for want, spoil := range map[string]func(*Profile){
		"":                           func(*Profile) {},
		"authority":                  func(p *Profile) { p.Authority = "a\n" },
		"user agent":                 func(p *Profile) { p.UserAgent = "b\r" },
		"content subtype":            func(p *Profile) { p.ContentSubtype = "\x00" },
		"encoding":                   func(p *Profile) { p.Encoding = "\x7f" },
		"list of accepted encodings": func(p *Profile) { p.Accept = "e,\nf" },
	} {
		p := good
		spoil(&p)
		if got := p.Check().Invalid(); got != want {
			t.Errorf("%+v: %q", p, got)
		}
		spoiled := p
		spoiled.Authority, spoiled.UserAgent, spoiled.ContentSubtype, spoiled.Encoding, spoiled.Accept = "", "", "", "", ""
		if got := spoiled.Check().Invalid(); got != "" {
			t.Errorf("%+v: %q", spoiled, got)
		}
	}
}

func TestContentType(t *testing.T) {
	for subtype, want := range map[string]string{"": "application/grpc", "proto": "application/grpc+proto", "json": "application/grpc+json"} {
		if got := ContentType(subtype); got != want {
			t.Errorf("ContentType(%q) = %q", subtype, got)
		}
	}
}

func TestContentTypesNameTheirSubtype(t *testing.T) {
	for contentType, want := range map[string]string{
		"application/grpc": "", "application/grpc+proto": "proto", "application/grpc+JSON": "json", "application/grpc;x": "x", "text/html": "", "": "",
	} {
		if got := Subtype(contentType); got != want {
			t.Errorf("%q: %q, want %q", contentType, got, want)
		}
	}
}
