package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
)

// drainsPort reports whether the listener on the port closes connections of HTTP/1.1 clients.
func (r *agentProcess) drainsPort(port string) bool {
	r.t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: testTimeout}).Get("http://" + r.address + ":" + port + "/")
	if err != nil {
		r.t.Errorf("port %s: %v", port, err)
		return false
	}
	_ = answer.Body.Close()
	return answer.Close
}

// TestSidecarDrainsInboundAndRouterDrainsAll also verifies that gRPC streams and TCP connections delay the shutdown.
func TestSidecarDrainsInboundAndRouterDrainsAll(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct {
		address     string
		outboundToo bool
	}{"sidecar": {"127.143.1.1", false}, "router": {"127.143.1.2", true}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, c.address)
			s.args = []string{"proxy", kind}
			s.env = append(s.env, s.drainFor("0.2s"))
			s.serveTraffic(t)
			outward := strings.NewReplacer(`"INBOUND"`, `"OUTBOUND"`, "8080", "8081", `"web"`, `"out"`).Replace(httpListener)
			s.cp.more = append(s.cp.more, message(t, &listenerv3.Listener{}, outward, s.address))
			r := s.startReady(t)
			for _, port := range []string{"8080", "8081"} {
				if r.drainsPort(port) {
					t.Errorf("clients of port %s are requested to disconnect although nothing drains", port)
				}
			}
			streams := openStreams(t, s.address)
			r.signal(syscall.SIGTERM)
			r.waitState(stateDraining)
			if !r.drainsPort("8080") {
				t.Error("a client of the inbound listener is not requested to disconnect")
			}
			if got := r.drainsPort("8081"); got != c.outboundToo {
				t.Errorf("a client of the outbound listener is requested to disconnect: %v, want %v", got, c.outboundToo)
			}
			streams.alive()
			streams.cancel()
			r.checkExit(0, "no request and no connection is left")
			r.checkNothingLeft()
		})
	}
}

// An Envoy that is restarted during a drain must drain too: otherwise the disconnected clients would reconnect to it.
func TestEnvoyRestartedDuringDrainDrainsToo(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.151.1.1")
	s.args = append(s.args, "--restart")
	r := s.start(t)
	r.waitReady()
	r.signal(syscall.SIGUSR2)
	r.waitState(stateDraining)
	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.eventually("the restarted Envoy drains, and requests its clients to disconnect", func() error {
		if pids := r.startedEnvoys(); pids[len(pids)-1] == first {
			return errors.New("no other Envoy yet")
		}
		if got := s.get(0); got.err != nil || !got.close {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	r.waitState(stateDraining)
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
}
