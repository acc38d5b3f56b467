package controlplane_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// getAs requests a debug page with a token for a namespace.
func (p *testServer) getAs(namespace, method, path string) (int, string) {
	p.t.Helper()
	token, err := p.Authority().IssueToken(namespace, "somebody", time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.withHeader(http.Header{"Authorization": {"Bearer " + token}}, method, path)
}

func (p *testServer) withHeader(header http.Header, method, path string) (int, string) {
	p.t.Helper()
	request, err := http.NewRequest(method, "http://"+p.MonitoringAddr().String()+path, strings.NewReader("{}"))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header, request.Host = header, header.Get("Host")
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestDebugPagesShowATokenItsNamespace(t *testing.T) {
	_, p, _ := newInspectedServer(t)
	client := p.Status().Clients[0]
	for _, page := range []string{"/debug/config_dump?proxyID=", "/debug/describe?proxyID="} {
		for _, id := range []string{client.ID, client.Node} {
			for namespace, want := range map[string]int{"shop": http.StatusOK, "istio-system": http.StatusOK, "elsewhere": http.StatusNotFound} {
				if code, body := p.getAs(namespace, "GET", page+url.QueryEscape(id)); code != want {
					t.Errorf("%s%s for namespace %s: %d %.200s", page, id, namespace, code, body)
				}
			}
		}
	}
	for _, page := range []string{"syncz", "registryz", "configz", "problems", "registrations"} {
		if code, body := p.getAs("elsewhere", "GET", "/debug/"+page); code != http.StatusOK || strings.TrimSpace(body) != "[]" {
			t.Errorf("%s for namespace elsewhere: %d %.200s", page, code, body)
		}
	}
	if _, body := p.getAs("shop", "GET", "/debug/syncz"); strings.Count(body, `"node"`) != 2 {
		t.Errorf("clients of namespace shop: %s", body)
	}
	if code, _ := p.getAs("shop", "POST", "/debug/diff"); code != http.StatusForbidden {
		t.Errorf("a workload's comparison: %d", code)
	}
	if code, _ := p.getAs("istio-system", "POST", "/debug/diff"); code != http.StatusOK {
		t.Errorf("the platform's comparison: %d", code)
	}
}

func TestDebugPagesRefuseInvalidTokensAndForeignPages(t *testing.T) {
	_, p, _ := newInspectedServer(t)
	for name, header := range map[string]http.Header{
		"an invalid token":  {"Authorization": {"Bearer x"}},
		"another host":      {"Host": {"evil.example"}},
		"a foreign origin":  {"Origin": {"http://evil.example"}},
		"another site's":    {"Sec-Fetch-Site": {"cross-site"}},
		"an unknown scheme": {"Authorization": {"Basic eDp5"}},
	} {
		if code, body := p.withHeader(header, "GET", "/debug/syncz"); code != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
}

func TestDebugPagesOfALocalMeshNeedATokenEvenOfItsUser(t *testing.T) {
	p := start(t, controlplane.Config{ConfigDirs: []string{t.TempDir()}, Ports: freePorts, StartsProxies: true})
	if code, body := p.get("/debug/syncz"); code != http.StatusUnauthorized || !strings.Contains(body, "control socket") {
		t.Errorf("without a token: %d %s", code, body)
	}
	if code, _ := p.getAs("istio-system", "GET", "/debug/syncz"); code != http.StatusOK {
		t.Errorf("with the platform's token: %d", code)
	}
	if code, _ := p.get("/metrics"); code != http.StatusOK {
		t.Errorf("metrics: %d", code)
	}
}

func TestThePlaintextPortIsOpenOffLoopbackOnlyWhereItIsRequested(t *testing.T) {
	for _, c := range []struct {
		address string
		port    int
		open    bool
	}{{"127.99.14.1", 0, true}, {"0.0.0.0", 0, false}, {"0.0.0.0", controlplane.FreePort, true}} {
		ports := freePorts
		ports.Plain = c.port
		p := start(t, controlplane.Config{ConfigDirs: []string{t.TempDir()}, Ports: ports, Address: c.address})
		if p.PlainAddr().IsValid() != c.open {
			t.Errorf("%s, port %d: open at %v", c.address, c.port, p.PlainAddr())
		}
		p.stop()
	}
}
