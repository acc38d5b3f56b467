package agent

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// probedApplication starts an application whose health the test controls, and which reports who probes it.
func probedApplication(t *testing.T, address string) (port uint16, well *atomic.Bool) {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	well = &atomic.Bool{}
	well.Store(true)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = fmt.Fprintf(w, "%s asks %s", strings.Split(r.RemoteAddr, ":")[0], r.Host)
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	return netip.MustParseAddrPort(l.Addr().String()).Port(), well
}

func TestAgentProbesApplicationForKubeletAndControlPlane(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.106.1")
	port, well := probedApplication(t, s.address)
	s.env = append(s.env,
		fmt.Sprintf(`ISTIO_KUBE_APP_PROBERS={"/app-health/shop/readyz":{"httpGet":{"path":"/","port":%d},"timeoutSeconds":5}}`, port),
		fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, terminationDrainDuration: 1s,
			readinessProbe: {periodSeconds: 1, timeoutSeconds: 5, httpGet: {host: "%s", port: %d}}}`, s.cp.address, s.address, port))
	r := s.startReady(t)
	kubelet := func(wantCode int) {
		t.Helper()
		code, body, err := r.http("GET", "15020/app-health/shop/readyz")
		if want := fmt.Sprintf("127.0.0.6 asks %s:%d", s.address, port); err != nil || code != wantCode || body != want {
			t.Errorf("%d %q %v, want %d %q", code, body, err, wantCode, want)
		}
	}
	reported := func(want string) {
		t.Helper()
		select {
		case got := <-s.cp.health:
			if want == "" && got != "" || !strings.Contains(got, want) {
				t.Fatalf("reported %q, want %q", got, want)
			}
		case <-time.After(testTimeout):
			t.Fatalf("no health report, want %q", want)
		}
	}
	kubelet(200)
	reported("")
	well.Store(false)
	kubelet(503)
	reported("503")
	well.Store(true)
	kubelet(200)
	reported("")
	if code, body, err := r.http("GET", "15020/app-health/shop/livez"); err != nil || code != 400 {
		t.Errorf("an unknown probe: %d %q %v", code, body, err)
	}
	if len(s.cp.health) != 0 {
		t.Errorf("reported without a change: %q", <-s.cp.health)
	}
	r.post("15020/drain")
	reported("draining")
	kubelet(200) // the agent then only forwards the probes
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
}
