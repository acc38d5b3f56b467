package inspect

import (
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

func TestAWorkloadIsFoundByWhatPeopleCallIt(t *testing.T) {
	now := time.Now()
	clients := []xds.ClientStatus{client("page-v1.shop", now), client("page-v2.shop", now), client("page-v1.test", now), client("db.shop", now), client("db.shop", now.Add(time.Second))}
	for what, want := range map[string]string{"page-v1.shop": "page-v1.shop", "page-v2": "page-v2.shop", "db": "db.shop", "page-v1.t": "page-v1.test"} {
		if got, err := Find(clients, what); err != nil || Name(got) != want {
			t.Errorf("%q is %s, %v", what, Name(got), err)
		}
	}
	if got, _ := Find(clients, "db"); !got.Connected.After(now) {
		t.Error("of two connections the older one is taken")
	}
	for _, what := range []string{"page-v1", "page", "nobody"} {
		if got, err := Find(clients, what); err == nil {
			t.Errorf("%q is %s", what, Name(got))
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
	got := asked(files).Files[0].Text
	if strings.Contains(got, "aGlkZGVu") || !strings.Contains(got, "kind: Service") || !strings.Contains(got, "kind: Gateway") {
		t.Errorf("what is sent is\n%s", got)
	}
	if strings.Count(got, "\n") != strings.Count(text, "\n") {
		t.Error("the lines of the other documents have moved")
	}
	if _, err := ReadFiles([]string{filepath.Join(dir, "none")}); err == nil {
		t.Error("a directory that is not there can be read")
	}
}

func TestEnvoysOwnDumpsReadLikeTheControlPlanes(t *testing.T) {
	got, err := parseTree([]byte(`{"dynamic_active_clusters": [{"cluster": {"eds_cluster_config": {}, "metadata": {"filter.a_b": 1}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	c := got.at("dynamicActiveClusters").list()[0].at("cluster")
	if !c.has("edsClusterConfig") || !c.at("metadata").has("filter.a_b") {
		t.Errorf("the dump is %v", got.v)
	}
}

func TestTwoDirectoriesAreComparedWithoutAControlPlane(t *testing.T) {
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
			t.Errorf("the proxy %q is taken", bad)
		}
	}
}

// A table says what tells two routes or clusters apart.
func TestTablesSayWhatRoutesAskForAndHowClustersConnect(t *testing.T) {
	for _, c := range []struct {
		part, kind, body string
		want             []string
	}{
		{"routes", xds.RouteType, `{"name": "80", "virtualHosts": [{"name": "a", "domains": ["a"], "routes": [
			{"match": {"path": "/q", "caseSensitive": false, "queryParameters": [{"name": "v", "stringMatch": {"exact": "1"}}, {"name": "w"}]}, "directResponse": {"status": 204}},
			{"match": {"prefix": "/old", "headers": [{"name": "x", "stringMatch": {"prefix": "y"}, "invertMatch": true}]}, "redirect": {"schemeRedirect": "https", "hostRedirect": "b.example", "portRedirect": 8443, "pathRedirect": "/new"}},
			{"match": {"prefix": "/", "dynamicMetadata": [{"path": [{"key": "payload"}, {"key": "groups"}], "value": {"orMatch": {"valueMatchers": [{"stringMatch": {"exact": "a"}}, {}]}}, "invert": true}]}, "directResponse": {"status": 205}}
		]}]}`, []string{"/* not metadata payload.groups=a  205", "/q ?v=1 ?w (in any case)          204", "/old* not x=y*                    redirect https://b.example:8443/new"}},
		{"clusters", xds.ClusterType, `{"name": "outbound|80||a", "type": "EDS", "transportSocketMatches": [
			{"transportSocket": {"name": "envoy.transport_sockets.upstream_proxy_protocol", "typedConfig": {"transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {"commonTlsContext": {"tlsCertificateSdsSecretConfigs": [{}]}}}}}},
			{"transportSocket": {"name": "envoy.transport_sockets.raw_buffer"}}
		]}`, []string{"PROXY protocol, mutual TLS where there is a sidecar, else plaintext"}},
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
