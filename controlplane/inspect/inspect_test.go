package inspect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

func client(node string, since time.Time) xds.ClientStatus {
	return xds.ClientStatus{ID: node + "-1", Node: "sidecar~10.0.0.1~" + node + "~x", Connected: since}
}

func TestWorkloadIsFoundByNameOrPrefix(t *testing.T) {
	now := time.Now()
	clients := []xds.ClientStatus{client("page-v1.shop", now), client("page-v2.shop", now), client("page-v1.test", now), client("db.shop", now), client("db.shop", now.Add(time.Second))}
	for what, want := range map[string]string{"page-v1.shop": "page-v1.shop", "page-v2": "page-v2.shop", "db": "db.shop", "page-v1.t": "page-v1.test"} {
		if got, err := Find(clients, what); err != nil || Name(got) != want {
			t.Errorf("Find(%q) returns %s, %v", what, Name(got), err)
		}
	}
	if got, _ := Find(clients, "db"); !got.Connected.After(now) {
		t.Error("Find returns the older of two connections")
	}
	for _, what := range []string{"page-v1", "page", "unknown"} {
		if got, err := Find(clients, what); err == nil {
			t.Errorf("Find(%q) returns %s", what, Name(got))
		}
	}
}

func TestSecretsDoNotLeaveTheMachine(t *testing.T) {
	dir := t.TempDir()
	text := "kind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Secret\ndata:\n  tls.key: aGlkZGVu\n---\n{\"kind\": \"Secret\", \"data\": {\"k\": \"aGlkZGVu\"}}\n---\nkind: Gateway\n"
	for name, content := range map[string]string{"a.yaml": text, "b.txt": "kind: no", ".hidden.yaml": "kind: no"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := ReadFiles([]string{dir})
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	got := newDiffRequest(files).Files[0].Text
	if strings.Contains(got, "aGlkZGVu") || !strings.Contains(got, "kind: Service") || !strings.Contains(got, "kind: Gateway") {
		t.Errorf("the request contains\n%s", got)
	}
	if strings.Count(got, "\n") != strings.Count(text, "\n") {
		t.Error("the line numbers of the other documents changed")
	}
	if _, err := ReadFiles([]string{filepath.Join(dir, "none")}); err == nil {
		t.Error("ReadFiles accepts a directory that does not exist")
	}
}

func TestEnvoysDumpsHaveTheControlPlanesFormat(t *testing.T) {
	got, err := parseTree([]byte(`{"dynamic_active_clusters": [{"cluster": {"eds_cluster_config": {}, "metadata": {"filter.a_b": 1}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	c := got.lookup("dynamicActiveClusters").list()[0].lookup("cluster")
	if !c.has("edsClusterConfig") || !c.lookup("metadata").has("filter.a_b") {
		t.Errorf("the dump is %v", got.v)
	}
}

func TestOfflineDiffOfTwoDirectories(t *testing.T) {
	file := func(weight string) []controlplane.DiffFile {
		return []controlplane.DiffFile{{Name: "a.yaml", Text: "apiVersion: v1\nkind: Service\nmetadata: {name: reviews, namespace: shop}\nspec: {selector: {app: reviews}, ports: [{name: http, port: 80}]}\n---\n" +
			"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: reviews, namespace: shop}\nspec: {hosts: [reviews], http: [{timeout: " + weight + ", route: [{destination: {host: reviews}}]}]}\n"}}
	}
	answer, err := DiffOffline(file("3s"), file("5s"), []string{"page.shop:app=page", "router/edge.shop:istio=edge"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := WriteDiff(&out, answer.Proxies, answer.Groups, answer.Problems); err != nil {
		t.Fatal(err)
	}
	const want = "\npage.shop\n  ~ vhds 80/reviews.shop.svc.cluster.local:80\n      ~ routes[0].route.timeout: 3s → 5s\n\n1 of 2 proxies would be changed\n"
	if out.String() != want {
		t.Errorf("the difference is\n%s\nnot\n%s", out.String(), want)
	}
	for _, bad := range []string{"page", "page.shop:app", "."} {
		if _, err := DiffOffline(nil, nil, []string{bad}); err == nil {
			t.Errorf("ParseProxy accepts %q", bad)
		}
	}
}

// Tables contain the fields that distinguish one route or cluster from another.
func TestTablesDescribeRoutesAndUpstreamTLS(t *testing.T) {
	for _, c := range []struct {
		part, kind, body string
		want             []string
	}{
		{"routes", xds.RouteType, `{"name": "80", "virtualHosts": [{"name": "a", "domains": ["a"], "routes": [
			{"match": {"path": "/q", "caseSensitive": false, "queryParameters": [{"name": "v", "stringMatch": {"exact": "1"}}, {"name": "w"}]}, "directResponse": {"status": 204}},
			{"match": {"prefix": "/old", "headers": [{"name": "x", "stringMatch": {"prefix": "y"}, "invertMatch": true}]}, "redirect": {"schemeRedirect": "https", "hostRedirect": "b.example", "portRedirect": 8443, "pathRedirect": "/new"}},
			{"match": {"prefix": "/", "dynamicMetadata": [{"path": [{"key": "payload"}, {"key": "groups"}], "value": {"orMatch": {"valueMatchers": [{"stringMatch": {"exact": "a"}}, {}]}}, "invert": true}]}, "directResponse": {"status": 205}}
		]}]}`, []string{"/* not metadata payload.groups=a  205", "/q ?v=1 ?w (case-insensitive)     204", "/old* not x=y*                    redirect https://b.example:8443/new"}},
		{"clusters", xds.ClusterType, `{"name": "outbound|80||a", "type": "EDS", "transportSocketMatches": [
			{"transportSocket": {"name": "envoy.transport_sockets.upstream_proxy_protocol", "typedConfig": {"transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {"commonTlsContext": {"tlsCertificateSdsSecretConfigs": [{}]}}}}}},
			{"transportSocket": {"name": "envoy.transport_sockets.raw_buffer"}}
		]}`, []string{"PROXY protocol, mutual TLS to endpoints with a sidecar, else plaintext"}},
	} {
		body, err := parseTree([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := WriteTable(&out, c.part, map[string][]Resource{c.kind: {{Body: body.v}}}); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the table of %s lacks %q:\n%s", c.part, want, out.String())
			}
		}
	}
}

func TestSecretsOfEnvoysConfigurationAreNotShown(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "bootstrap": {"node": {"metadata":
			{"DB_PASSWORD": "zq1", "REGISTRY_AUTH": "zq2", "NOTE": "Bearer zq3abcdefgh", "CLUSTER_ID": "Kubernetes"}}}}]}`)
	}))
	defer server.Close()
	bootstrap, err := (&Admin{HTTP: server.Client(), Base: server.URL}).Bootstrap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(bootstrap); strings.Contains(got, "zq") || !strings.Contains(got, "Kubernetes") {
		t.Errorf("the bootstrap is displayed as %s", got)
	}
}

func TestProxyNamesCannotControlTheTerminal(t *testing.T) {
	var out strings.Builder
	c := xds.ClientStatus{Node: "sidecar~10.0.0.1~a\x1b[2J\u202eb\nforged.default~default.svc.cluster.local", Types: []xds.TypeStatus{{TypeURL: xds.ClusterType, Error: "no\u2066\n"}}}
	if err := WriteClients(&out, []xds.ClientStatus{c}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.ContainsAny(got, "\x1b\u202e\u2066") || strings.Contains(got, "\nforged") || !strings.Contains(got, `a\u001b[2J\u202eb\nforged`) {
		t.Errorf("printed %q", got)
	}
}

func TestDegradedProxiesAreMarkedWithTheReason(t *testing.T) {
	var out strings.Builder
	c := xds.ClientStatus{Node: "sidecar~10.0.0.1~a.default~default.svc.cluster.local", InSync: true, Degraded: "no module", Types: []xds.TypeStatus{}}
	if err := WriteClients(&out, []xds.ClientStatus{c}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "\n!  a.default") || !strings.Contains(got, "  a.default is degraded: no module\n") {
		t.Errorf("printed\n%s", got)
	}
}
