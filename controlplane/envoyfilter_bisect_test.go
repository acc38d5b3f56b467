package controlplane_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// clientListener is a client's version of a listener, and all versions that it has accepted.
type clientListener struct {
	mu      sync.Mutex
	refused int
	now     string
	ever    []string
}

func (k *clientListener) response(listener string, refuse func(text string, before int) string) func(*discoveryv3.DeltaDiscoveryResponse) string {
	return func(m *discoveryv3.DeltaDiscoveryResponse) string {
		for _, r := range m.GetResources() {
			if m.GetTypeUrl() != xds.ListenerType || r.GetName() != listener {
				continue
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			text := string(r.GetResource().GetValue())
			if reason := refuse(text, k.refused); reason != "" {
				k.refused++
				return reason
			}
			k.now, k.ever = text, append(k.ever, text)
		}
		return ""
	}
}

func (k *clientListener) eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	testenv.Eventually(t, what, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !is() {
			return fmt.Errorf("refused %d, taken %d", k.refused, len(k.ever))
		}
		return nil
	})
}

func (p *testServer) awaitSync() {
	p.t.Helper()
	testenv.Eventually(p.t, "clients are in sync", func() error {
		st := p.Status()
		if st.Pending || len(st.Clients) == 0 {
			return errors.New("not yet")
		}
		for _, c := range st.Clients {
			if !c.InSync {
				return fmt.Errorf("%+v", c.Types)
			}
		}
		return nil
	})
}

// newFilteredServer starts a control plane with a service and an EnvoyFilter for a context. put replaces the filter's
// code.
func newFilteredServer(t *testing.T, side, code string) (p *testServer, put func(code string)) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "page"))
	put = func(code string) {
		document := fmt.Sprintf(luaFilter, "guard", code)
		document = strings.Replace(document, "name: guard}", "name: guard, namespace: shop}", 1)
		write(t, filepath.Join(dir, "guard.yaml"), strings.Replace(document, "SIDECAR_OUTBOUND", side, 1))
	}
	put(code)
	return start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts}), put
}

// A rejection for a temporary reason (a port in use, a missing file) does not remove a filter.
func TestTemporaryRejectionRemovesNoFilter(t *testing.T) {
	p, _ := newFilteredServer(t, "SIDECAR_OUTBOUND", addHeaderFilter("x", "y"))
	var k clientListener
	p.connectClient("page", k.response("0.0.0.0_80", func(_ string, before int) string {
		if before == 0 {
			return "error adding listener '0.0.0.0_80': cannot bind: Address already in use"
		}
		return ""
	}))
	k.eventually(t, "the client has its filter", func() bool { return k.refused > 0 && strings.Contains(k.now, "lua.guard") })
	p.awaitSync()
	if problems := p.Status().Problems; len(problems) > 0 {
		t.Errorf("problems are %v", problems)
	}
}

// A filter that rejects callers is never left out, however often Envoy rejects it: without it the callers would be
// admitted.
func TestFilterThatRejectsCallersIsNeverLeftOut(t *testing.T) {
	for _, side := range []string{"SIDECAR_INBOUND", "ANY"} {
		t.Run(side, func(t *testing.T) {
			p, put := newFilteredServer(t, side, noLuaFilter)
			var k clientListener
			p.connectClient("page", k.response("virtualInbound", func(text string, _ int) string {
				if strings.Contains(text, "this is no Lua") {
					return "script load error"
				}
				return ""
			}))
			if from := p.awaitRejection(xds.ListenerType).From; len(from) == 0 || !strings.Contains(from[0].Document, "guard") {
				t.Errorf("the rejected document is not named: %+v", from)
			}
			put(addHeaderFilter("x", "one"))
			k.eventually(t, "the client accepts the fixed filter", func() bool { return strings.Contains(k.now, "one") })
			put(noLuaFilter)
			k.eventually(t, "the previous version stays", func() bool { return k.refused > 1 })
			p.awaitProblem("the previous version stays in force")
			put(addHeaderFilter("x", "two"))
			k.eventually(t, "the client accepts the second fix", func() bool { return strings.Contains(k.now, "two") })
			for _, text := range k.ever {
				if !strings.Contains(text, "lua.guard") {
					t.Error("the client received the listener without the filter")
				}
			}
		})
	}
}

// A control plane that is started while a filter is rejected knows its previous version, even if the document was
// edited meanwhile. It knows no previous version of a new filter.
func TestEnvoyFilterVersionsSurviveARestart(t *testing.T) {
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "page"))
	put := func(code string) {
		document := strings.Replace(fmt.Sprintf(luaFilter, "guard", code), "name: guard}", "name: guard, namespace: shop}", 1)
		write(t, filepath.Join(dir, "guard.yaml"), strings.Replace(document, "SIDECAR_OUTBOUND", "SIDECAR_INBOUND", 1))
	}
	put(addHeaderFilter("x", "one"))
	live := func(during func(p *testServer, k *clientListener)) {
		p := start(t, controlplane.Config{ConfigDirs: []string{dir}, StateDir: state, Ports: freePorts})
		defer p.stop()
		var k clientListener
		p.connectClient("page", k.response("virtualInbound", func(text string, _ int) string {
			if strings.Contains(text, "this is no Lua") {
				return "script load error"
			}
			return ""
		}))
		during(p, &k)
	}
	has := func(k *clientListener, value string) {
		k.eventually(t, "the client has "+value, func() bool { return strings.Contains(k.now, value) })
	}
	live(func(_ *testServer, k *clientListener) {
		has(k, "one")
		put(noLuaFilter)
		k.eventually(t, "it is refused", func() bool { return k.refused > 0 })
	})
	for range 2 { // the second control plane has never seen the valid version
		live(func(p *testServer, k *clientListener) {
			has(k, "one")
			p.awaitProblem("the previous version stays in force")
		})
	}
	put(noLuaFilter + " either")
	live(func(p *testServer, k *clientListener) { has(k, "one") })
	put(addHeaderFilter("x", "two"))
	live(func(p *testServer, k *clientListener) { has(k, "two") })
	put(noLuaFilter)
	live(func(p *testServer, k *clientListener) { has(k, "two") })

	if err := os.Remove(filepath.Join(dir, "guard.yaml")); err != nil {
		t.Fatal(err)
	}
	live(func(_ *testServer, k *clientListener) {
		k.eventually(t, "the client has no filter", func() bool { return k.now != "" && !strings.Contains(k.now, "lua.guard") })
	})
	if _, err := os.Stat(filepath.Join(state, "filter-versions")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the versions of a removed filter are still stored: %v", err)
	}
	put(noLuaFilter)
	live(func(p *testServer, k *clientListener) {
		k.eventually(t, "it is refused", func() bool { return k.refused > 0 })
		p.awaitRejection(xds.ListenerType)
		put(addHeaderFilter("x", "new"))
		has(k, "new")
		for _, text := range k.ever {
			if !strings.Contains(text, "new") {
				t.Error("a removed version replaces the rejected one")
			}
		}
	})
	if err := os.WriteFile(filepath.Join(state, "filter-versions"), []byte("no json"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(addHeaderFilter("x", "three"))
	live(func(_ *testServer, k *clientListener) { has(k, "three") })
}
