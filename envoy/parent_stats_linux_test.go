package envoy

import (
	"maps"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// statsAnswer is HotRestartMessage{reply: {stats: {num_connections, counter_deltas, gauges}}}.
func statsAnswer(gauges map[string]uint64) []byte {
	inside := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	entry := func(name string, value uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(inside(1, []byte(name)), 2, protowire.VarintType), value)
	}
	stats := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 7)
	stats = append(stats, inside(3, entry("a.counter", 9))...)
	for name, value := range gauges {
		stats = append(stats, inside(4, entry(name, value))...)
	}
	return inside(2, inside(3, stats))
}

func TestGaugesAreParsed(t *testing.T) {
	want := map[string]uint64{"listener.0.0.0.0_80.downstream_cx_active": 3, "http.in.downstream_rq_active": 0}
	got, err := parseGauges(statsAnswer(want))
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
	for _, wrong := range [][]byte{nil, {0x18, 1}, {0x12, 0}, {0x12, 5}, {0x12, 2, 0x1a, 9}} {
		if got, err := parseGauges(wrong); err == nil {
			t.Errorf("%x was accepted as %v", wrong, got)
		}
	}
}

func FuzzParseGauges(f *testing.F) {
	f.Add(statsAnswer(map[string]uint64{"a": 1, "b": 1 << 63}))
	f.Add([]byte{0x12, 2, 0x1a, 0})
	f.Fuzz(func(_ *testing.T, answer []byte) { _, _ = parseGauges(answer) })
}
