package agent

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

func TestXDSCommandsShowWhatARunningProxyRelays(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.152.2.1")
	r := s.startReady(t)
	if out, code := r.command("xds", "status"); code != 0 || !strings.Contains(out, "connected") || !strings.Contains(out, "Listener") || !strings.Contains(out, "acknowledged") {
		t.Errorf("xds status: code %d\n%s", code, out)
	}
	if out, code := r.command("xds", "history"); code != 0 || !strings.Contains(out, "response") || !strings.Contains(out, "ack") {
		t.Errorf("xds history: code %d\n%s", code, out)
	}
	if _, body, err := r.http("GET", "15020/debug/xdsz/history"); err != nil || !strings.Contains(body, `"kind": "ack"`) {
		t.Errorf("/debug/xdsz/history: %v\n%s", err, body)
	}
	if out, code := r.command("xds", "tap", "--for=2h"); code == 0 || !strings.Contains(out, "up to 1h") {
		t.Errorf("a tap of two hours: code %d\n%s", code, out)
	}
	if out, code := r.command("xds", "tap", "--for=1ms", "-o", "xml"); code != 2 {
		t.Errorf("an unknown format: code %d\n%s", code, out)
	}
}

func TestTapShowsNewEnvoyAndItsResources(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.152.3.1")
	s.args = append(s.args, "--restart")
	r := s.startReady(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lines, err := DialControl(filepath.Join(r.dir, "etc/istio/proxy")).OpenTap(ctx, TapRequest{Types: []string{"lds"}, Contents: true, For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	killProcess(t, r.envoy(), syscall.SIGKILL)
	kinds := map[string]bool{}
	for decoder := json.NewDecoder(lines); !kinds[xdsproxy.TapResource] || !kinds[xdsproxy.TapAck]; {
		var l xdsproxy.TapLine
		if err := decoder.Decode(&l); err != nil {
			t.Fatalf("the tap: %v, kinds %v", err, kinds)
		}
		kinds[l.Kind] = true
		if l.Kind == xdsproxy.TapResource && !strings.Contains(string(l.Content), `"name":"test"`) {
			t.Errorf("a resource without content: %+v", l)
		}
	}
}
