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

// taken is what a client holds of a listener, and every version of it that it ever took.
type taken struct {
	mu      sync.Mutex
	refused int
	now     string
	ever    []string
}

func (k *taken) answer(listener string, refuse func(text string, before int) string) func(*discoveryv3.DeltaDiscoveryResponse) string {
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

func (k *taken) eventually(t *testing.T, what string, is func() bool) {
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

func (p *plane) settled() {
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

// filtered is a control plane with a service and an EnvoyFilter of a side.
func filtered(t *testing.T, side, code string) (p *plane, put func(code string)) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "page"))
	put = func(code string) {
		document := fmt.Sprintf(scripted, "guard", code)
		document = strings.Replace(document, "name: guard}", "name: guard, namespace: shop}", 1)
		write(t, filepath.Join(dir, "guard.yaml"), strings.Replace(document, "SIDECAR_OUTBOUND", side, 1))
	}
	put(code)
	return start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts}), put
}

// What an Envoy refuses for a reason that passes (a port that is taken, a file that is not there) convicts no filter.
func TestRefusalThatPassesTakesNoFilterOut(t *testing.T) {
	p, _ := filtered(t, "SIDECAR_OUTBOUND", adds("x", "y"))
	var k taken
	p.client("page", k.answer("0.0.0.0_80", func(_ string, before int) string {
		if before == 0 {
			return "error adding listener '0.0.0.0_80': cannot bind: Address already in use"
		}
		return ""
	}))
	k.eventually(t, "the client has its filter", func() bool { return k.refused > 0 && strings.Contains(k.now, "lua.guard") })
	p.settled()
	if problems := p.Status().Problems; len(problems) > 0 {
		t.Errorf("told of %v", problems)
	}
}

// A filter of those who call is not done without, however often it is refused: what it keeps out would come in.
func TestFilterThatMayKeepCallersOutIsNeverLeftOut(t *testing.T) {
	for _, side := range []string{"SIDECAR_INBOUND", "ANY"} {
		t.Run(side, func(t *testing.T) {
			p, put := filtered(t, side, noScript)
			var k taken
			p.client("page", k.answer("virtualInbound", func(text string, _ int) string {
				if strings.Contains(text, "this is no Lua") {
					return "script load error"
				}
				return ""
			}))
			if from := p.rejection(xds.ListenerType).From; len(from) == 0 || !strings.Contains(from[0].Document, "guard") {
				t.Errorf("the document that was refused is not named: %+v", from)
			}
			put(adds("x", "one"))
			k.eventually(t, "the client takes what is mended", func() bool { return strings.Contains(k.now, "one") })
			put(noScript)
			k.eventually(t, "the version of before stays", func() bool { return k.refused > 1 })
			p.problem("the version of before stays in force")
			put(adds("x", "two"))
			k.eventually(t, "the client takes what is mended again", func() bool { return strings.Contains(k.now, "two") })
			for _, text := range k.ever {
				if !strings.Contains(text, "lua.guard") {
					t.Error("the client was given the listener without the filter")
				}
			}
		})
	}
}

// A control plane that is started while a filter is refused knows the version before it, also if the document was edited
// meanwhile; and of a filter that is new, or was another's, it knows none.
func TestVersionsOfFiltersOutlastAControlPlane(t *testing.T) {
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "page"))
	put := func(code string) {
		document := strings.Replace(fmt.Sprintf(scripted, "guard", code), "name: guard}", "name: guard, namespace: shop}", 1)
		write(t, filepath.Join(dir, "guard.yaml"), strings.Replace(document, "SIDECAR_OUTBOUND", "SIDECAR_INBOUND", 1))
	}
	put(adds("x", "one"))
	live := func(during func(p *plane, k *taken)) {
		p := start(t, controlplane.Config{ConfigDirs: []string{dir}, StateDir: state, Ports: freePorts})
		defer p.stop()
		var k taken
		p.client("page", k.answer("virtualInbound", func(text string, _ int) string {
			if strings.Contains(text, "this is no Lua") {
				return "script load error"
			}
			return ""
		}))
		during(p, &k)
	}
	has := func(k *taken, value string) {
		k.eventually(t, "the client has "+value, func() bool { return strings.Contains(k.now, value) })
	}
	live(func(_ *plane, k *taken) {
		has(k, "one")
		put(noScript)
		k.eventually(t, "it is refused", func() bool { return k.refused > 0 })
	})
	for range 2 { // also by one that never saw the good version
		live(func(p *plane, k *taken) {
			has(k, "one")
			p.problem("the version of before stays in force")
		})
	}
	put(noScript + " either")
	live(func(p *plane, k *taken) { has(k, "one") })
	put(adds("x", "two"))
	live(func(p *plane, k *taken) { has(k, "two") })
	put(noScript)
	live(func(p *plane, k *taken) { has(k, "two") })

	if err := os.Remove(filepath.Join(dir, "guard.yaml")); err != nil {
		t.Fatal(err)
	}
	live(func(_ *plane, k *taken) {
		k.eventually(t, "the client has no filter", func() bool { return k.now != "" && !strings.Contains(k.now, "lua.guard") })
	})
	if _, err := os.Stat(filepath.Join(state, "filter-versions")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the versions of a filter that is gone are still kept: %v", err)
	}
	put(noScript)
	live(func(p *plane, k *taken) {
		k.eventually(t, "it is refused", func() bool { return k.refused > 0 })
		p.rejection(xds.ListenerType)
		put(adds("x", "new"))
		has(k, "new")
		for _, text := range k.ever {
			if !strings.Contains(text, "new") {
				t.Error("what was taken away earlier stands in for what is refused")
			}
		}
	})
	if err := os.WriteFile(filepath.Join(state, "filter-versions"), []byte("no json"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(adds("x", "three"))
	live(func(_ *plane, k *taken) { has(k, "three") })
}
