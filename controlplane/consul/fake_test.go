package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeConsul serves the two endpoints that a source reads. Tests use it for responses that they cannot obtain from a
// real Consul.
type fakeConsul struct {
	*httptest.Server
	mu      sync.Mutex
	changed chan struct{} // closed at each change
	index   uint64
	bodies  map[string]string // by path
	// answer, if set, replaces the response to a query. It returns false for the usual response.
	answer  func(w http.ResponseWriter, r *http.Request) bool
	queries []string // path and parameters of all queries
	// blocked and maxBlocked are the current and the maximum number of concurrent blocking queries for services.
	blocked, maxBlocked int
}

func newFake(t testing.TB, start func(*httptest.Server)) *fakeConsul {
	f := &fakeConsul{changed: make(chan struct{}), index: 10, bodies: map[string]string{"/v1/catalog/services": `{"consul": []}`}}
	f.Server = httptest.NewUnstartedServer(f)
	start(f.Server)
	t.Cleanup(func() {
		f.Server.CloseClientConnections()
		f.Server.Close()
	})
	return f
}

func startFake(t testing.TB) *fakeConsul { return newFake(t, (*httptest.Server).Start) }

func (f *fakeConsul) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.queries = append(f.queries, r.URL.RequestURI())
	answer, changed := f.answer, f.changed
	wanted, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	current := f.index
	service := r.URL.Path != "/v1/catalog/services"
	f.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	if wanted == current {
		f.block(r.Context(), changed, service)
	}
	f.mu.Lock()
	body, ok := f.bodies[r.URL.Path]
	w.Header().Set(indexHeader, strconv.FormatUint(f.index, 10))
	f.mu.Unlock()
	if !ok {
		body = "[]"
	}
	_, _ = w.Write([]byte(body))
}

func (f *fakeConsul) block(ctx context.Context, changed chan struct{}, service bool) {
	if service {
		f.mu.Lock()
		f.blocked++
		f.maxBlocked = max(f.maxBlocked, f.blocked)
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			f.blocked--
			f.mu.Unlock()
		}()
	}
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// change changes the state, sets the index and wakes all blocking queries.
func (f *fakeConsul) change(index uint64, edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
	f.index = index
	close(f.changed)
	f.changed = make(chan struct{})
}

// setServices replaces all services. Each has the entries as the JSON of its instances.
func (f *fakeConsul) setServices(index uint64, services map[string]string) {
	f.change(index, func() {
		f.bodies = map[string]string{}
		names := map[string][]string{"consul": {}}
		for name, entries := range services {
			names[name] = []string{}
			f.bodies["/v1/health/service/"+name] = entries
		}
		list, _ := json.Marshal(names)
		f.bodies["/v1/catalog/services"] = string(list)
	})
}

func (f *fakeConsul) setAnswer(answer func(w http.ResponseWriter, r *http.Request) bool) {
	f.change(f.index, func() { f.answer = answer })
}

func (f *fakeConsul) listQueries() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.queries)
}

// anInstance returns the JSON of one passing instance.
func anInstance(id, address string) string {
	return fmt.Sprintf(`{"Node": {"Node": "n", "Address": "10.0.0.1", "Datacenter": "dc1"}, "Service": {"ID": %q, "Address": %q, "Port": 8080}, "Checks": [{"Status": "passing"}]}`, id, address)
}

// run starts a source, and waits until it is synced unless waits is false.
func run(t testing.TB, cfg Config, waits bool) (*Source, func()) {
	t.Helper()
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	if waits {
		testenv.Eventually(t, "the source is synced", func() error {
			if ok, reason := s.Health(); !ok {
				return fmt.Errorf("not healthy: %s", reason)
			}
			return nil
		})
		<-s.Synced()
	}
	return s, stop
}

// endpoints returns the addresses of all services by host.
func endpoints(s *Source) map[string]string {
	out := map[string]string{}
	for _, r := range s.List(config.ServiceEntry) {
		entry := r.Spec.(*networking.ServiceEntry)
		var addresses []string
		for _, e := range entry.GetEndpoints() {
			addresses = append(addresses, e.GetAddress())
		}
		out[entry.GetHosts()[0]] = strings.Join(addresses, " ")
	}
	return out
}

// await waits until the source has these services with these addresses.
func await(t testing.TB, s *Source, what string, want map[string]string) {
	t.Helper()
	testenv.Eventually(t, what, func() error {
		if got := endpoints(s); !maps.Equal(got, want) {
			return fmt.Errorf("services are %v, want %v", got, want)
		}
		return nil
	})
}

// awaitHealth waits until the reason of the source's health contains text, or until it is healthy if text is empty.
func awaitHealth(t testing.TB, s *Source, text string) {
	t.Helper()
	testenv.Eventually(t, "the health is "+strconv.Quote(text), func() error {
		if ok, reason := s.Health(); ok != (text == "") || !strings.Contains(reason, text) {
			return fmt.Errorf("it is %v, %q", ok, reason)
		}
		return nil
	})
}

// awaitProblem waits for a finding that contains text.
func awaitProblem(t testing.TB, s *Source, text string) {
	t.Helper()
	testenv.Eventually(t, "a problem contains "+text, func() error {
		problems := s.Problems()
		if slices.ContainsFunc(problems, func(p config.Problem) bool { return strings.Contains(p.String(), text) }) {
			return nil
		}
		return fmt.Errorf("problems are %v", problems)
	})
}
