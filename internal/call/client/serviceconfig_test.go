package client

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestParseServiceConfig(t *testing.T) {
	for text, problem := range map[string]string{ // "" for none
		`{}`:                  "",
		`{"methodConfig":[]}`: "",
		`{"loadBalancingPolicy":"round_robin","other":[1,{}]}`:                        "",
		`{"methodConfig":[{"name":[{"service":"s"}]}]}`:                               "",
		`{"methodConfig":[{"name":[{"service":"s","method":"m"}],"timeout":"1.5s"}]}`: "",
		`{"methodConfig":[{"name":[{}],"waitForReady":true}]}`:                        "",
		`{"methodConfig":[{"name":[{"service":"s"},{"service":"s","method":"m"}]}]}`:  "",
		`{"methodConfig":[{"timeout":"1s"}]}`:                                         "",
		`{"methodConfig":[{"name":[{"service":"s"}],"maxRequestMessageBytes":0}]}`:    "",
		`{"methodConfig":[{"name":[{"service":"s"}],"timeout":"-1s"}]}`:               "",
		`{"methodConfig":[{"name":[{"service":"s"}],"hedgingPolicy":{}}]}`:            "",
		`{`:                                     "unexpected end of JSON",
		`[]`:                                    "cannot unmarshal array",
		`{"methodConfig":{}}`:                   "cannot unmarshal object",
		`{"methodConfig":[{"timeout":1}]}`:      "cannot unmarshal number",
		`{"methodConfig":[{"name":["s"]}]}`:     "cannot unmarshal string",
		`{"methodConfig":[{"timeout":"1"}]}`:    "duration",
		`{"methodConfig":[{"timeout":"s"}]}`:    "duration",
		`{"methodConfig":[{"timeout":""}]}`:     "duration",
		`{"methodConfig":[{"timeout":"1ms"}]}`:  "duration",
		`{"methodConfig":[{"timeout":"1m1s"}]}`: "duration",
		`{"methodConfig":[{"timeout":"1us"}]}`:  "duration",
		`{"methodConfig":[{"timeout":" 1s"}]}`:  "duration",
		`{"methodConfig":[{"timeout":"1 s"}]}`:  "duration",
	} {
		sc, err := ParseServiceConfig(text, 5)
		if problem == "" && (err != nil || sc == nil) {
			t.Errorf("%s: %v", text, err)
		}
		if problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%s: %v, want a word of %q", text, err, problem)
		}
		if oracle := ofGRPC(text); (err == nil) != (oracle == nil) {
			t.Errorf("%s: %v, and grpc-go says %v", text, err, oracle)
		}
	}
}

// ofGRPC returns grpc-go's error for a service config.
func ofGRPC(text string) error {
	conn, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// TestServiceConfigsAreRefusedInTheWordsOfGRPC compares the errors for invalid configs with
// grpc-go's.
func TestServiceConfigsAreRefusedInTheWordsOfGRPC(t *testing.T) {
	const good = `"maxAttempts":2,"initialBackoff":"1s","maxBackoff":"2s","backoffMultiplier":1.5,"retryableStatusCodes":["UNAVAILABLE",14,10]`
	policy := func(json string) string {
		return `{"methodConfig":[{"name":[{"service":"s"}],"retryPolicy":{` + json + `}}]}`
	}
	for _, text := range []string{
		policy(good),
		policy(strings.ToUpper(good[:13]) + good[13:]),
		policy(good + `,"maxAttempts":1`),
		policy(good + `,"maxAttempts":-1`),
		policy(good + `,"maxAttempts":null`),
		policy(good + `,"maxAttempts":1000`),
		policy(good + `,"initialBackoff":"0s"`),
		policy(good + `,"maxBackoff":"-1s"`),
		policy(good + `,"backoffMultiplier":0`),
		policy(good + `,"retryableStatusCodes":[]`),
		policy(good + `,"retryableStatusCodes":["OK"]`),
		policy(good + `,"retryableStatusCodes":["NONSENSE"]`),
		policy(good + `,"retryableStatusCodes":[99]`),
		policy(``),
		`{"methodConfig":[{"name":[{"service":"s"}],"retryPolicy":null}]}`,
		`{"methodConfig":[{"retryPolicy":{}}]}`,
		`{"methodConfig":[{"name":[],"retryPolicy":{}}]}`,
		`{"methodConfig":[{"name":[{"method":"m"}]}]}`,
		`{"methodConfig":[{"name":[{"service":"s"}]},{"name":[{"service":"s"}]}]}`,
		`{"methodConfig":[{"name":[{},{}]}]}`,
		`{"retryThrottling":{"maxTokens":10,"tokenRatio":0.1}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":10,"tokenRatio":0.1}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":0,"tokenRatio":0.1}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":1000.5,"tokenRatio":0.1}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":10,"tokenRatio":0}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":10,"tokenRatio":-2}}`,
		`{"methodConfig":[],"retryThrottling":null}`,
		``,
	} {
		_, err := ParseServiceConfig(text, 5)
		want := ""
		if oracle := ofGRPC(text); oracle != nil {
			want = strings.TrimPrefix(oracle.Error(), "grpc: ")
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\n%q, and grpc-go says\n%q", text, got, want)
		}
	}
}

// A JSON null is the same as a missing field.
func TestAServiceConfigMayHaveNulls(t *testing.T) {
	for _, text := range []string{
		`{"methodConfig":null}`,
		`{"methodConfig":[{"name":null,"timeout":null,"waitForReady":null,"maxRequestMessageBytes":null}]}`,
		`{"methodConfig":[{"name":[{"service":"s"}],"retryPolicy":null}]}`,
		`{"methodConfig":[{"name":[{"service":"s"}],"hedgingPolicy":null}]}`,
	} {
		if _, err := ParseServiceConfig(text, 5); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func parseDuration(text string) (time.Duration, error) {
	var d jsonDuration
	err := d.UnmarshalJSON([]byte(strconv.Quote(text)))
	return time.Duration(d), err
}

func TestDurationsOfServiceConfigs(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "1s": time.Second, "1.5s": 1500 * time.Millisecond, ".5s": 500 * time.Millisecond, "2.s": 2 * time.Second,
		"-1.25s": -1250 * time.Millisecond, "0.000000001s": 1, "3600s": time.Hour,
	} {
		if d, err := parseDuration(text); err != nil || d != want {
			t.Errorf("%s: %v, %v, want %v", text, d, err, want)
		}
	}
}

// Durations that overflow become the longest possible ones, as in grpc-go.
func TestADurationOfAServiceConfigMayBeEndless(t *testing.T) {
	if d, err := parseDuration("315576000000s"); err != nil || d < 1e6*time.Hour {
		t.Errorf("%v, %v: protobuf's longest duration is refused", d, err)
	}
}

func TestTheClosestNameInAServiceConfigCounts(t *testing.T) {
	sc, err := ParseServiceConfig(`{"methodConfig":[
		{"name":[{}],"maxRequestMessageBytes":1},
		{"name":[{"service":"s"},{"service":"p.s"}],"maxRequestMessageBytes":2},
		{"name":[{"service":"s","method":"m"}],"maxRequestMessageBytes":3}]}`, 5)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := ParseServiceConfig(`{"methodConfig":[{"name":[{"service":"s"}],"maxRequestMessageBytes":2}]}`, 5)
	if err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]int{
		"/s/m": 3, "/s/n": 2, "/s/": 2, "/p.s/m": 2, "/t/m": 1, "/p/s/m": 1, "/s": 1, "s/m": 1, "": 1, "/": 1, "m": 1, "//": 1,
	} {
		if mc := sc.of(method); mc.MaxRequestMessageBytes == nil || int(*mc.MaxRequestMessageBytes) != want {
			t.Errorf("%q: %+v, want config %d", method, mc, want)
		}
		if mc := bare.of(method); (mc.MaxRequestMessageBytes != nil) != strings.HasPrefix(method, "/s/") {
			t.Errorf("%q without a default: %+v", method, mc)
		}
		if mc := (*ServiceConfig)(nil).of(method); mc != &noConfig {
			t.Errorf("%q without a config: %+v", method, mc)
		}
	}
}

func TestTheSmallerLimitCounts(t *testing.T) {
	n := func(n int) *int { return &n }
	for _, c := range []struct {
		config, option *int
		fallback       int
		want           int
	}{
		{nil, nil, 9, 9},
		{nil, n(5), 9, 5},
		{nil, n(0), 9, 0},
		{nil, n(-1), 9, -1}, // nothing is small enough, as in grpc-go
		{nil, n(math.MinInt), 9, math.MinInt},
		{nil, n(20), 9, 20},
		{n(5), nil, 9, 5},
		{n(20), nil, 9, 20},
		{n(5), n(6), 9, 5},
		{n(6), n(5), 9, 5},
		{n(0), n(5), 9, 0},
	} {
		if got := limit(c.config, c.option, c.fallback); got != c.want {
			t.Errorf("want %d: %d", c.want, got)
		}
	}
}

func FuzzParseServiceConfig(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"methodConfig":[{"name":[{"service":"s","method":"m"}],"timeout":"1.5s","waitForReady":true,"maxRequestMessageBytes":1}]}`,
		`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":2}}]}`, `{"methodConfig":[{"timeout":"-.s"}]}`, `{"methodConfig":[{"timeout":"9e9s"}]}`,
	} {
		f.Add(s, "/s/m")
	}
	f.Fuzz(func(t *testing.T, text, method string) {
		sc, err := ParseServiceConfig(text, 5)
		if (sc == nil) != (err != nil) {
			t.Fatalf("%v and %v", sc, err)
		}
		mc := sc.of(method)
		_, cancel := mc.withTimeout(t.Context())
		cancel()
	})
}

func TestHealthChecksAreRefusedWhereGRPCMakesThem(t *testing.T) {
	for text, refused := range map[string]bool{
		`{"healthCheckConfig":{"serviceName":"s"}}`:                                                              false,
		`{"healthCheckConfig":{"serviceName":"s"},"loadBalancingConfig":[{"pick_first":{}}]}`:                    false,
		`{"healthCheckConfig":{"serviceName":"s"},"loadBalancingPolicy":"pick_first"}`:                           false,
		`{"healthCheckConfig":null,"loadBalancingConfig":[{"round_robin":{}}]}`:                                  false,
		`{"loadBalancingConfig":[{"round_robin":{}}]}`:                                                           false,
		`{"healthCheckConfig":{"serviceName":"s"},"loadBalancingConfig":[{"round_robin":{}}]}`:                   true,
		`{"healthCheckConfig":{"serviceName":"s"},"loadBalancingConfig":[{"round_robin":{}},{"pick_first":{}}]}`: true,
		`{"healthCheckConfig":{},"loadBalancingPolicy":"round_robin"}`:                                           true,
	} {
		if _, err := ParseServiceConfig(text, 5); (err != nil) != refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A service config can hold any size and any duration, also on 32-bit systems.
func TestSizesAndTimeoutsOfAnyLength(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-1": -1, "4294967296": 1 << 32, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
	} {
		sc, err := ParseServiceConfig(`{"methodConfig":[{"name":[{}],"maxRequestMessageBytes":`+text+`}]}`, 5)
		if err != nil {
			t.Fatal(err)
		}
		if got := *sc.of("/a/b").MaxRequestMessageBytes; got != jsonSize(max(math.MinInt, min(want, math.MaxInt))) {
			t.Errorf("%s bytes are %d", text, got)
		}
	}
	for _, text := range []string{"9223372036854775808", "1.5", `"1"`} {
		if _, err := ParseServiceConfig(`{"methodConfig":[{"name":[{}],"maxRequestMessageBytes":`+text+`}]}`, 5); err == nil {
			t.Errorf("%s bytes are taken", text)
		}
	}
	const century = 100 * 365 * 24 * time.Hour
	for text, ok := range map[string]func(time.Duration) bool{
		"0s":             func(d time.Duration) bool { return d == 0 },
		"0.000000001s":   func(d time.Duration) bool { return d == 1 },
		"-1s":            func(d time.Duration) bool { return d < 0 },
		"9223372036s":    func(d time.Duration) bool { return d > century },
		"315576000000s":  func(d time.Duration) bool { return d > century },
		"-315576000000s": func(d time.Duration) bool { return d < -century },
	} {
		sc, err := ParseServiceConfig(`{"methodConfig":[{"name":[{}],"timeout":"`+text+`"}]}`, 5)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Duration(*sc.of("/a/b").Timeout); !ok(d) {
			t.Errorf("%s are %v", text, d)
		}
	}
}
