package agent

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestReportedHealthIsMeasured(t *testing.T) {
	a := &Agent{metrics: prometheus.NewRegistry()}
	var reported []bool
	report := a.withHealthMetric(func(healthy bool, _ string) { reported = append(reported, healthy) })
	value := func(want string) {
		t.Helper()
		n, err := testutil.GatherAndCount(a.metrics, "pilotfish_application_healthy")
		families, gatherErr := a.metrics.Gather()
		if err != nil || gatherErr != nil || n != 1 || families[0].Metric[0].GetGauge().String() != want {
			t.Errorf("%d series, %v %v, %v, want %s", n, err, gatherErr, families, want)
		}
	}
	value("value:0")
	report(true, "")
	value("value:1")
	report(false, "no database")
	value("value:0")
	if len(reported) != 2 || !reported[0] || reported[1] {
		t.Errorf("the control plane received %v", reported)
	}
}
