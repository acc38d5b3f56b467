package logformat

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
)

// stamp matches the time in the format of Istio's programs.
const stamp = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`

func TestTextIsTabSeparatedAsInIstio(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(NewText(&out, slog.LevelInfo))
	scoped := log.With("part", "xds").With("node", "a b")
	for _, row := range []struct {
		write func()
		want  string // after the time
	}{
		{func() { log.Info("Envoy started", "pid", 7) }, "info\tEnvoy started\tpid=7\n"},
		{func() { log.Warn("no attributes") }, "warn\tno attributes\n"},
		{func() { scoped.Error("lost", "error", errors.New(`dial "x": refused`)) }, "error\txds\tlost\tnode=\"a b\" error=\"dial \\\"x\\\": refused\"\n"},
		{func() { scoped.Info("here", "caller", "a/b.go:1") }, "info\txds\ta/b.go:1\there\tnode=\"a b\"\n"},
		{func() { log.Info("restart", "part", "dns", "after", 2*time.Second) }, "info\tdns\trestart\tafter=2s\n"},
		{func() { log.Info("two\nlines\t\"quoted\"") }, "info\ttwo\\nlines\\t\"quoted\"\n"},
		{func() { log.Info("forged", "name", "a\n2026-01-01T00:00:00.000000Z\tinfo\tall is well") }, "info\tforged\tname=\"a\\n2026-01-01T00:00:00.000000Z\\tinfo\\tall is well\"\n"},
		{func() { log.WithGroup("a").Info("group", slog.Group("b", "c", 1), "d", "") }, "info\tgroup\ta.b.c=1 a.d=\"\"\n"},
		{func() { log.Info("text", "address", netip.MustParseAddr("10.0.0.1"), "part", "") }, "info\ttext\taddress=10.0.0.1\n"},
		{func() { log.Error("trace", "stack", "main.main()\n\tmain.go:1\n") }, "error\ttrace\nmain.main()\n\tmain.go:1\n"},
		{func() { log.Debug("dropped") }, ""},
	} {
		out.Reset()
		row.write()
		if row.want == "" {
			if out.Len() > 0 {
				t.Errorf("%q is written", &out)
			}
			continue
		}
		if want := regexp.MustCompile("^" + stamp + "\t" + regexp.QuoteMeta(row.want) + "$"); !want.MatchString(out.String()) {
			t.Errorf("%q, want %q", &out, row.want)
		}
	}
}

type number struct{ major int }

func (n number) String() string { return "v" + strings.Repeat("1", n.major) }

func TestJSONHasIstiosFields(t *testing.T) {
	var out bytes.Buffer
	slog.New(NewJSON(&out, slog.LevelInfo)).With("part", "xds").Warn("lost", "version", number{2}, "error", errors.New("gone"), "n", 1)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"level": "warn", "scope": "xds", "msg": "lost", "version": "v11", "error": "gone", "n": 1.0} {
		if line[key] != want {
			t.Errorf("%s is %v, want %v: %s", key, line[key], want, &out)
		}
	}
	if text, _ := line["time"].(string); !regexp.MustCompile("^" + stamp + "$").MatchString(text) {
		t.Errorf("time %v", line["time"])
	}
}
