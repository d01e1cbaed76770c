package main

// A Color is a pair of CSS colors, for light and for dark pages.
type Color struct{ Light, Dark string }

// colors are the colors of the rivals, the same in all pictures.
var colors = map[string]Color{
	"nearcall":            {"#0969da", "#4493f8"},
	"nearcall-inline":     {"#66b3ff", "#a5d6ff"},
	"nearcall-upgraded":   {"#54aeff", "#79c0ff"},
	"nearcall-tcp":        {"#54aeff", "#79c0ff"}, // nearcall-upgraded's
	"nearcall-shared":     {"#1a7f37", "#3fb950"},
	"nearcall-loop":       {"#0e7490", "#22d3ee"},
	"nearcall-coroutines": {"#5eead4", "#99f6e4"},

	"grpc-go": {"#cf4a3f", "#f47067"},
	"tcp":     {"#cf4a3f", "#f47067"}, // grpc-go's
	"bufconn": {"#f0883e", "#ffb77c"}, // grpc-go's

	"grpchan": {"#1f2328", "#e6edf3"},
	"drpc":    {"#d4a72c", "#d29922"},
	"ttrpc":   {"#8250df", "#a371f7"},

	"connect-nearcall":  {"#1b9e8f", "#2dd4bf"},
	"connect-inprocess": {"#bf3989", "#db61a2"},
	"connect-http2":     {"#bf3989", "#db61a2"}, // connect-inprocess's
	"connect-http3":     {"#bf3989", "#db61a2"}, // connect-inprocess's
	"connect-http1":     {"#e3a1c8", "#8c4a70"},

	"direct":       {"#6e7781", "#9198a1"},
	"direct-clone": {"#b6bec7", "#59626e"},
	"raw":          {"#8c959f", "#848d97"},
	"protobuf":     {"#afb8c1", "#656c76"},
	"shmipc-go":    {"#953800", "#db6d28"},
	"watched-line": {"#57606a", "#adbac7"},
	"one-copy":     {"#d0d7de", "#444c56"},
	"two-copies":   {"#c2cad2", "#4d555f"},
	"three-copies": {"#9ea7b0", "#768390"},
}
