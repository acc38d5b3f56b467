package exposition

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// statistics returns metrics in Envoy's format, with one or two labels and integer values.
func statistics() string {
	var b strings.Builder
	for f := range 100 {
		fmt.Fprintf(&b, "# TYPE envoy_cluster_statistic_%d counter\n", f)
		for s := range 330 {
			fmt.Fprintf(&b, "envoy_cluster_statistic_%d{cluster_name=\"outbound|8080||other-%d.default.svc.cluster.local\",response_code=\"200\"} %d\n", f, s, f*s)
		}
	}
	return b.String()
}

func BenchmarkMerge(b *testing.B) {
	text := statistics()
	for _, c := range []struct {
		name   string
		format Format
		once   bool
	}{{"text", Text, false}, {"OpenMetrics", OpenMetrics, false}, {"each series once", Text, true}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				m := NewMerger(io.Discard, c.format)
				if _, err := m.Copy(strings.NewReader(text), Source{Once: c.once}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
