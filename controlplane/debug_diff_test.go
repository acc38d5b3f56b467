package controlplane_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/inspect"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// newInspectedServer starts a control plane with two services and a proxy of each, and returns an inspection client.
func newInspectedServer(t *testing.T) (dir string, p *testServer, client *inspect.Client) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "reviews")+fmt.Sprintf(shopService, "ratings")+`apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: pages, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/page]}}], to: [{operation: {methods: [GET]}}]}]}
`)
	write(t, filepath.Join(dir, "routes.yaml"), fmt.Sprintf(shopRoute, "reviews", "/re.*"))
	p = start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	for _, name := range []string{"reviews", "ratings"} {
		p.connectClient(name, func(*discoveryv3.DeltaDiscoveryResponse) string { return "" })
	}
	testenv.Eventually(t, "both clients are in sync", func() error {
		clients := p.Status().Clients
		for _, c := range clients {
			if !c.InSync || len(c.Types) < 3 {
				return fmt.Errorf("clients are %+v", clients)
			}
		}
		if len(clients) != 2 {
			return fmt.Errorf("%d clients", len(clients))
		}
		return nil
	})
	transport := &http.Transport{DisableKeepAlives: true}
	return dir, p, &inspect.Client{HTTP: &http.Client{Transport: transport, Timeout: 10 * time.Second}, Base: "http://" + p.MonitoringAddr().String()}
}

func TestDiffReportsChangesWithoutApplyingThem(t *testing.T) {
	dir, p, client := newInspectedServer(t)
	files, err := inspect.ReadFiles([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	same, err := client.Diff(t.Context(), files)
	if err != nil || same.Proxies != 2 || len(same.Groups) != 0 {
		t.Fatalf("the same documents: %+v, %v", same, err)
	}
	for i, f := range files { // a refused document leaves the current version in force
		files[i].Text = strings.Replace(f.Text, "regex:", "reg:", 1)
	}
	if refused, err := client.Diff(t.Context(), files); err != nil || len(refused.Groups) != 0 || len(refused.Problems) == 0 {
		t.Fatalf("a document that is refused: %+v, %v", refused, err)
	}
	next := t.TempDir()
	services, err := os.ReadFile(filepath.Join(dir, "services.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(next, "services.yaml"), string(services))
	write(t, filepath.Join(next, "routes.yaml"), fmt.Sprintf(shopRoute, "reviews", "/changed.*"))
	write(t, filepath.Join(next, "bad.yaml"), "kind: Nonsense\napiVersion: v1\nmetadata: {name: x}\n")
	if files, err = inspect.ReadFiles([]string{next}); err != nil {
		t.Fatal(err)
	}
	version := p.Status().Clients[0].Version
	answer, err := client.Diff(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := inspect.WriteDiff(&out, answer.Proxies, answer.Groups, answer.Problems); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bad.yaml:1:", "ratings.shop, reviews.shop\n", "  ~ rds 80\n", "match.safeRegex.regex: /re.* → /changed.*", "2 of 2 proxies would be changed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the difference lacks %q:\n%s", want, out.String())
		}
	}
	if after := p.Status().Clients[0].Version; after != version {
		t.Errorf("a comparison changed the version from %s to %s", version, after)
	}
}

// compare posts a request body to /debug/diff and returns the status of the response. It sends the body when the control
// plane reads it.
func (p *testServer) compare(body io.Reader) (int, string) {
	p.t.Helper()
	request, err := http.NewRequest(http.MethodPost, "http://"+p.MonitoringAddr().String()+"/debug/diff", body)
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("Expect", "100-continue")
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}}
	response, err := client.Do(request)
	if err != nil {
		p.t.Error(err)
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

func TestDiffAccepts8MiB(t *testing.T) {
	p := startServerWithoutConfig(t)
	const before, after = `{"files":[{"name":"a.yaml","text":"# `, `"}]}`
	for size, want := range map[int]int{8 << 20: http.StatusOK, 8<<20 + 1: http.StatusBadRequest} {
		body := before + strings.Repeat("x", size-len(before)-len(after)) + after
		code, text := p.compare(strings.NewReader(body))
		if code != want || code != http.StatusOK && !strings.Contains(text, "at most 8 MiB") {
			t.Errorf("%d bytes: status %d, %.200s", size, code, text)
		}
	}
}

func TestDiffComparesOneRequestAtATime(t *testing.T) {
	p := startServerWithoutConfig(t)
	body, rest := io.Pipe()
	first := make(chan int, 1)
	go func() {
		code, _ := p.compare(body)
		first <- code
	}()
	if _, err := io.WriteString(rest, "{"); err != nil {
		t.Fatal(err)
	}
	if code, text := p.compare(strings.NewReader("{}")); code != http.StatusTooManyRequests {
		t.Errorf("a second request has status %d: %s", code, text)
	}
	if _, err := io.WriteString(rest, "}"); err != nil {
		t.Fatal(err)
	}
	_ = rest.Close()
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first request has status %d", code)
	}
	testenv.Eventually(t, "a request after the first is served", func() error {
		if code, text := p.compare(strings.NewReader("{}")); code != http.StatusOK {
			return fmt.Errorf("status %d: %s", code, text)
		}
		return nil
	})
}

func TestDescribeShowsTheEffectOfDocuments(t *testing.T) {
	dir, _, client := newInspectedServer(t)
	clients, err := client.Clients(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found, err := inspect.Find(clients, "reviews")
	if err != nil {
		t.Fatal(err)
	}
	d, err := client.Describe(t.Context(), found.ID)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := d.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Serves reviews.shop.svc.cluster.local:80 (HTTP, on port 80 of the workload)\n  accepts mutual TLS only (STRICT), as PeerAuthentication shop/strict specifies",
		"VirtualService shop/reviews  " + dir + "/routes.yaml:1:1\n      requests with path like \"/re.*\" go to reviews",
		"requests are allowed only if they match an ALLOW policy",
		"ALLOW: from cluster.local/ns/shop/sa/page to GET",
		"  2 services",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the description lacks %q:\n%s", want, out.String())
		}
	}
	if _, err := client.Describe(t.Context(), "unknown"); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("of a client that is not there: %v", err)
	}
}

func TestTablesShowWhatAProxyShouldHave(t *testing.T) {
	_, _, client := newInspectedServer(t)
	clients, err := client.Clients(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := inspect.WriteClients(&out, clients, time.Now()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "✓  ratings.shop") || !strings.Contains(out.String(), "CDS  EDS  LDS") {
		t.Errorf("the status of proxies is\n%s", out.String())
	}
	found, err := inspect.Find(clients, "ratings")
	if err != nil {
		t.Fatal(err)
	}
	all, err := client.Resources(t.Context(), found.ID)
	if err != nil {
		t.Fatal(err)
	}
	for part, wants := range map[string][]string{
		"clusters":  {"reviews.shop.svc.cluster.local", "outbound", "EDS"},
		"routes":    {"~/re.*", "outbound|80||reviews.shop.svc.cluster.local"},
		"listeners": {"virtualInbound", "virtualOutbound", "routes 80"},
		"endpoints": {"ENDPOINT"},
	} {
		out.Reset()
		if err := inspect.WriteTable(&out, part, all); err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the table of %s lacks %q:\n%s", part, want, out.String())
			}
		}
	}
}
