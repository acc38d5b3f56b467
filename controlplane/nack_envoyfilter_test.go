package controlplane_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// luaFilter is an EnvoyFilter with a Lua script. Only Envoy can check whether it compiles.
const luaFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: %s}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: INSERT_FIRST
      value:
        name: lua.%[1]s
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: %q}
`

const noLuaFilter = "function envoy_on_response(handle) this is no Lua"

func addHeaderFilter(header, value string) string {
	return fmt.Sprintf("function envoy_on_response(handle) handle:headers():add(%q, %q) end", header, value)
}

// clientListener is a client's version of a listener, and all versions that it has accepted.
type clientListener struct {
	mu       sync.Mutex
	rejected int
	accepted []string
}

// response rejects versions of a listener that contain bad.
func (k *clientListener) response(listener, bad string) func(*discoveryv3.DeltaDiscoveryResponse) string {
	return func(m *discoveryv3.DeltaDiscoveryResponse) string {
		for _, r := range m.GetResources() {
			if m.GetTypeUrl() != xds.ListenerType || r.GetName() != listener {
				continue
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			text := string(r.GetResource().GetValue())
			if strings.Contains(text, bad) {
				k.rejected++
				return "script load error in " + listener
			}
			k.accepted = append(k.accepted, text)
		}
		return ""
	}
}

// await waits until the client has rejected the specified number of versions, and its accepted version contains text.
func (k *clientListener) await(t *testing.T, rejected int, text string) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d rejections, and the accepted version contains %q", rejected, text), func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.rejected != rejected || text != "" && (len(k.accepted) == 0 || !strings.Contains(k.accepted[len(k.accepted)-1], text)) {
			return fmt.Errorf("rejected %d, accepted %d versions", k.rejected, len(k.accepted))
		}
		return nil
	})
}

// logBuffer is a buffer that is safe for concurrent use.
type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

// A rejected EnvoyFilter is named by the finding, the status and the log, for a client with an accepted configuration
// and for a new client. No client ever receives a configuration without the filter, or with an earlier version.
func TestRejectedEnvoyFilterIsNamedAndNeverRemoved(t *testing.T) {
	for _, side := range []string{"SIDECAR_INBOUND", "SIDECAR_OUTBOUND"} {
		t.Run(side, func(t *testing.T) {
			listener := map[string]string{"SIDECAR_INBOUND": "virtualInbound", "SIDECAR_OUTBOUND": "0.0.0.0_80"}[side]
			dir, log := t.TempDir(), &logBuffer{}
			write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "page")+
				"apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: logs, namespace: shop}\nspec: {accessLogging: [{disabled: true}]}\n")
			file := filepath.Join(dir, "guard.yaml")
			put := func(code string) {
				document := strings.Replace(fmt.Sprintf(luaFilter, "guard", code), "name: guard}", "name: guard, namespace: shop}", 1)
				write(t, file, strings.Replace(document, "SIDECAR_OUTBOUND", side, 1))
			}
			put(addHeaderFilter("x", "one"))
			p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, Logger: slog.New(slog.NewTextHandler(log, nil))})
			var first, second clientListener
			p.connectClient("page", first.response(listener, "no Lua"))
			first.await(t, 0, "one")
			p.awaitSync(1)

			put(noLuaFilter)
			first.await(t, 1, "one")
			p.connectClient("new", second.response(listener, "no Lua"))
			second.await(t, 1, "")
			testenv.Eventually(t, "both rejections name the document", func() error {
				named := 0
				for _, c := range p.Status().Clients {
					for _, s := range c.Types {
						if s.Rejected != nil && len(s.Rejected.From) > 0 && s.Rejected.From[0].Document == "EnvoyFilter shop/guard" && !c.InSync {
							named++
						}
					}
				}
				if named != 2 {
					return fmt.Errorf("clients are %+v", p.Status().Clients)
				}
				return nil
			})
			found := p.debugProblems()
			if len(found) != 1 || found[0].Code != config.RejectedByEnvoy || found[0].Key.String() != "EnvoyFilter shop/guard" || found[0].At.File != file ||
				!strings.Contains(found[0].Message, "rejected by 2 proxies") || !strings.Contains(found[0].Message, "script load error") {
				t.Errorf("findings are %v", found)
			}
			if text := log.String(); strings.Count(text, "client rejected configuration") != 2 || strings.Count(text, "EnvoyFilter shop/guard at "+file) != 2 {
				t.Errorf("the log is %s", text)
			}

			put(addHeaderFilter("x", "two"))
			first.await(t, 1, "two")
			second.await(t, 1, "two")
			p.awaitSync(2)
			if problems := p.debugProblems(); len(problems) > 0 {
				t.Errorf("problems remain after the fix: %v", problems)
			}
			for _, k := range []*clientListener{&first, &second} {
				for _, text := range k.accepted {
					if !strings.Contains(text, "lua.guard") {
						t.Error("a client received the listener without the filter")
					}
				}
			}
		})
	}
}

// debugProblems returns the findings of the debug page.
func (p *testServer) debugProblems() (problems []config.Problem) {
	p.t.Helper()
	_, body := p.get("/debug/problems")
	if err := json.Unmarshal([]byte(body), &problems); err != nil {
		p.t.Fatal(err)
	}
	return problems
}

// awaitSync waits until n clients are connected and in sync.
func (p *testServer) awaitSync(n int) {
	p.t.Helper()
	testenv.Eventually(p.t, "the clients are in sync", func() error {
		st := p.Status()
		if len(st.Clients) != n || st.Pending {
			return fmt.Errorf("clients are %+v", st.Clients)
		}
		for _, c := range st.Clients {
			if !c.InSync || len(c.Types) < 3 {
				return fmt.Errorf("%s is %+v", c.Node, c.Types)
			}
		}
		return nil
	})
}
