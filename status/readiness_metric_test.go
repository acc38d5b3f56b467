package status

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// requests records the requests to a fake Envoy, in order.
type requests struct {
	mu   sync.Mutex
	what []string
}

func (a *requests) note(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.what = append(a.what, what)
}

// While Envoy builds its statistics, it does not respond to other requests.
func TestReadinessIsCheckedBeforeEnvoyIsScraped(t *testing.T) {
	var a requests
	m := envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
		a.note("statistics")
		text("envoy_x 1\n")(w, r)
	}))
	checks := []Check{{Name: "envoy", Func: func() health.Condition { a.note("readiness"); return health.Healthy }}}
	registry := agentMetrics()
	_, url := run(t, Config{Gatherer: registry, Registerer: registry, Metrics: m, Checks: checks})
	if got := call(t, "GET", url+"/metrics").body; !strings.Contains(got, "\nenvoy_x 1\n") || !strings.Contains(got, "\npilotfish_ready{part=\"envoy\"} 1\n") {
		t.Errorf("%q", got)
	}
	if a.mu.Lock(); a.what[0] != "readiness" {
		t.Errorf("Envoy received the requests %q", a.what)
	}
	a.mu.Unlock()
}

func TestHungCheckDoesNotBlockScrape(t *testing.T) {
	statistics := make(chan struct{})
	m := envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
		close(statistics)
		text("envoy_x 1\n")(w, r)
	}))
	checks := []Check{{Name: "slow", Func: func() health.Condition {
		select {
		case <-statistics:
		case <-time.After(20 * time.Second):
			t.Error("Envoy received no request")
		}
		return health.Healthy
	}}}
	registry := agentMetrics()
	_, url := run(t, Config{Gatherer: registry, Registerer: registry, Metrics: m, Checks: checks})
	if got := call(t, "GET", url+"/metrics", timeoutHeader, "60").body; !strings.Contains(got, "\nenvoy_x 1\n") {
		t.Errorf("%q", got)
	}
}
