package status

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestMeshMetricsHaveTheNamesThatDashboardsKnow: only where a name stands, and however the text arrives.
func TestMeshMetricsHaveTheNamesThatDashboardsKnow(t *testing.T) {
	long := strings.Repeat("x", 2*bareBuffer)
	given := "# TYPE envoy_istio_requests_total counter\nenvoy_istio_requests_total{a=\"envoy_istio_b\"} 1\n" +
		"envoy_cluster_x{a=\"\\nenvoy_istio_\"} 2\n# HELP envoy_istio_x y\n" + long + "\nenvoy_istio_request_bytes_sum{} 3\nenvoy_istio"
	want := "# TYPE istio_requests_total counter\nistio_requests_total{a=\"envoy_istio_b\"} 1\n" +
		"envoy_cluster_x{a=\"\\nenvoy_istio_\"} 2\n# HELP istio_x y\n" + long + "\nistio_request_bytes_sum{} 3\nenvoy_istio"
	for name, from := range map[string]io.Reader{
		"at once": strings.NewReader(given), "byte by byte": iotest.OneByteReader(strings.NewReader(given)),
		"in halves": iotest.HalfReader(strings.NewReader(given)), "end with data": iotest.DataErrReader(strings.NewReader(given)),
	} {
		got, err := io.ReadAll(newBareNames(from))
		if err != nil || string(got) != want {
			t.Errorf("%s: %v, %d bytes\n%.300s", name, err, len(got), got)
		}
	}
}

// FuzzBareNames: the same comes out however the text arrives.
func FuzzBareNames(f *testing.F) {
	f.Add("envoy_istio_a 1\n# TYPE envoy_istio_b c\n")
	f.Fuzz(func(t *testing.T, given string) {
		once, err := io.ReadAll(newBareNames(strings.NewReader(given)))
		slow, err2 := io.ReadAll(newBareNames(iotest.OneByteReader(strings.NewReader(given))))
		if err != nil || err2 != nil || len(given) < bareBuffer && string(once) != string(slow) {
			t.Errorf("%v %v: %q and %q", err, err2, once, slow)
		}
	})
}
