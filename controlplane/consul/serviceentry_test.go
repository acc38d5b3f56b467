package consul

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// instanceJSON returns the JSON of an instance. node and service are further fields.
func instanceJSON(id, node, service, checks string) string {
	return fmt.Sprintf(`{"Node": {"Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1"%s}, "Service": {"ID": %q%s}, "Checks": [%s]}`, node, id, service, checks)
}

const passingCheck = `{"Status": "passing"}`

// buildFrom converts the instances of the service web.
func buildFrom(t testing.TB, cfg Config, name string, entries ...string) (*config.Resource, []string) {
	t.Helper()
	var list []entry
	if err := json.Unmarshal([]byte("["+strings.Join(entries, ",")+"]"), &list); err != nil {
		t.Fatal(err)
	}
	instances, flaws := readInstances(name, list, cfg.Tags)
	b := &builder{cfg: cfg.withDefaults(), source: "consul test", name: name, instances: instances}
	b.reportFlaws(flaws)
	var r *config.Resource
	problems := b.problems
	if len(instances) > 0 {
		r, problems = b.build()
	}
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	return r, texts
}

func TestInstancesBecomeAServiceEntry(t *testing.T) {
	for _, c := range []struct {
		name    string
		cfg     Config
		entries []string
		want    string // the spec; empty for no document
	}{
		{
			name: "the address of the node, health and order",
			entries: []string{
				instanceJSON("b", "", `, "Port": 8080`, passingCheck+","+passingCheck),
				instanceJSON("a", "", `, "Port": 8080, "Address": "10.0.0.2"`, ""),
				instanceJSON("warning", "", `, "Port": 8080, "Address": "10.0.0.3"`, passingCheck+`, {"Status": "warning"}`),
				instanceJSON("maintenance", "", `, "Port": 8080, "Address": "10.0.0.4"`, passingCheck+`, {"CheckID": "_node_maintenance", "Status": "critical"}`),
			},
			want: `{hosts: [web.service.consul], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 8080, name: port-8080}], endpoints: [
				{address: 10.0.0.2, locality: dc1, labels: {app: web, topology.istio.io/cluster: dc1}},
				{address: 10.0.0.1, locality: dc1, labels: {app: web, topology.istio.io/cluster: dc1}}]}`,
		},
		{
			name: "tags and metadata",
			entries: []string{
				instanceJSON("a", "", `, "Port": 8080, "Tags": ["version=v1", "canary", "urlprefix-/web", "traefik.http.routers.web.rule=Host(`+"`a`"+`)", "topology.istio.io/cluster=forged", "security.istio.io/tlsMode=istio"],
					"Meta": {"version": "v2", "app": "shop", "protocol": "HTTP2", "service-account": "web", "text": "two words"}`, ""),
			},
			want: `{hosts: [web.service.consul], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 8080, name: http2-8080, protocol: HTTP2}], endpoints: [
				{address: 10.0.0.1, locality: dc1, serviceAccount: web, labels: {app: shop, version: v2, canary: "true", protocol: HTTP2, service-account: web,
					security.istio.io/tlsMode: istio, topology.istio.io/cluster: dc1}}]}`,
		},
		{
			name: "each port leads to all instances",
			entries: []string{
				instanceJSON("a", "", `, "Port": 8080, "Meta": {"protocol": "http"}`, ""),
				instanceJSON("b", "", `, "Port": 9090, "Address": "10.0.0.2"`, ""),
			},
			want: `{hosts: [web.service.consul], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 8080, name: http-8080, protocol: HTTP}, {number: 9090, name: http-9090, protocol: HTTP}], endpoints: [
				{address: 10.0.0.1, ports: {http-9090: 8080}, locality: dc1, labels: {app: web, protocol: http, topology.istio.io/cluster: dc1}},
				{address: 10.0.0.2, ports: {http-8080: 9090}, locality: dc1, labels: {app: web, topology.istio.io/cluster: dc1}}]}`,
		},
		{
			name: "dynamic ports behind one port of the service",
			entries: []string{
				instanceJSON("a", "", `, "Port": 20001, "Meta": {"service-port": "80"}`, ""),
				instanceJSON("b", "", `, "Port": 20002, "Meta": {"service-port": "80"}`, ""),
			},
			want: `{hosts: [web.service.consul], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: port-80}], endpoints: [
				{address: 10.0.0.1, ports: {port-80: 20001}, locality: dc1, labels: {app: web, service-port: "80", topology.istio.io/cluster: dc1}},
				{address: 10.0.0.1, ports: {port-80: 20002}, locality: dc1, labels: {app: web, service-port: "80", topology.istio.io/cluster: dc1}}]}`,
		},
		{
			name: "weights, localities, and an external service with a host name",
			cfg:  Config{Domain: "example.com", Namespace: "shop"},
			entries: []string{
				instanceJSON("a", `, "Meta": {"external-node": "true"}`, `, "Port": 443, "Address": "api.example.org", "Weights": {"Passing": 5, "Warning": 1}, "Locality": {"Region": "eu", "Zone": "eu-1"}`, ""),
				instanceJSON("b", `, "Meta": {"external-node": "true"}, "Locality": {"Region": "us"}`, `, "Port": 443`, ""),
			},
			want: `{hosts: [web.service.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: port-443}], endpoints: [
				{address: api.example.org, weight: 5, locality: eu/eu-1, labels: {app: web, topology.istio.io/cluster: dc1}},
				{address: 10.0.0.1, locality: us, labels: {app: web, topology.istio.io/cluster: dc1}}]}`,
		},
		{
			name:    "no healthy instance: proxies must not resolve the host of the service",
			entries: []string{instanceJSON("a", "", `, "Port": 80, "Address": "api.example.org"`, `{"Status": "critical"}`)},
			want:    `{hosts: [web.service.consul], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: port-80}]}`,
		},
		{
			name: "without a port, proxies and gateways of Consul, and other tags",
			cfg:  Config{Tags: []string{"mesh"}},
			entries: []string{
				instanceJSON("a", "", `, "Tags": ["mesh"]`, ""),
				instanceJSON("b", "", `, "Port": 80, "Tags": ["mesh"], "Kind": "connect-proxy"`, ""),
				instanceJSON("c", "", `, "Port": 80`, ""),
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, problems := buildFrom(t, c.cfg, "web", c.entries...)
			if len(problems) > 0 {
				t.Errorf("problems: %v", problems)
			}
			if c.want == "" {
				if r != nil {
					t.Errorf("the document is %v", r.Spec)
				}
				return
			}
			wanted, refused := config.Parse("want", []byte("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: web}\nspec: "+c.want))
			if len(wanted) != 1 {
				t.Fatal(refused)
			}
			got, want := r.Spec.(*networking.ServiceEntry), wanted[0].Spec.(*networking.ServiceEntry)
			if !proto.Equal(got, want) {
				t.Errorf("the document is\n%s\nwant\n%s", protojson.Format(got), protojson.Format(want))
			}
		})
	}
}

func TestInvalidInstancesAreReportedAndLeftOut(t *testing.T) {
	good := instanceJSON("good", "", `, "Port": 80`, "")
	for _, c := range []struct{ service, want string }{
		{`, "Port": 70000`, `warning: ServiceEntry consul/web: instance "bad" on node "n1": Port: "70000": not a port number; proxies do not use the instance`},
		{`, "Port": 80, "Address": "a b"`, `Address: "a b": neither an IP address nor a host name; proxies do not use the instance`},
		{`, "Port": 80, "Meta": {"service-port": "0"}`, `Meta[service-port]: "0": not a port number`},
		{`, "Port": 80, "Meta": {"service-account": "../web"}`, `Meta[service-account]: "../web": not the name of a service account`},
	} {
		r, problems := buildFrom(t, Config{}, "web", good, instanceJSON("bad", "", c.service, ""))
		if len(problems) != 1 || !strings.Contains(problems[0], c.want) {
			t.Errorf("problems are %v, want %s", problems, c.want)
		}
		if got := len(r.Spec.(*networking.ServiceEntry).GetEndpoints()); got != 1 {
			t.Errorf("%s: %d endpoints", c.service, got)
		}
	}
	bad := make([]string, maxFlaws+3)
	for i := range bad {
		bad[i] = instanceJSON(fmt.Sprint(i), "", `, "Port": -1`, "")
	}
	if r, problems := buildFrom(t, Config{}, "web", bad...); r != nil || len(problems) != maxFlaws+1 || !strings.Contains(problems[maxFlaws], "3 more instances are invalid") {
		t.Errorf("%v, %v", r, problems)
	}
}

func TestContradictoryInstancesAreReported(t *testing.T) {
	for _, c := range []struct{ first, second, want string }{
		{`"protocol": "http"`, `"protocol": "grpc"`, `instance "b" on node "n1": Meta[protocol]: "grpc": another instance has the protocol http, which the proxies use`},
		{`"protocol": "http"`, `"protocol": "spdy"`, `Meta[protocol]: "spdy": an unknown protocol, which has no effect (use one of http, http2, grpc, grpc-web, https,`},
	} {
		r, problems := buildFrom(t, Config{}, "web", instanceJSON("a", "", `, "Port": 80, "Meta": {`+c.first+`}`, ""), instanceJSON("b", "", `, "Port": 80, "Meta": {`+c.second+`}`, ""))
		if len(problems) != 1 || !strings.Contains(problems[0], c.want) {
			t.Errorf("problems are %v, want %s", problems, c.want)
		}
		if got := r.Spec.(*networking.ServiceEntry).GetPorts()[0].GetProtocol(); got != "HTTP" {
			t.Errorf("the protocol is %s", got)
		}
	}
	var many []string
	for i := range maxPorts + 4 {
		many = append(many, instanceJSON(fmt.Sprint(i), "", fmt.Sprintf(`, "Port": %d`, 20000+i), ""))
	}
	r, problems := buildFrom(t, Config{}, "web", many...)
	if len(problems) != 1 || !strings.Contains(problems[0], "the instances have 20 different ports; the service has only the 16 lowest (set the same port in the metadata key service-port of all instances)") {
		t.Errorf("problems are %v", problems)
	}
	entry := r.Spec.(*networking.ServiceEntry)
	if len(entry.GetPorts()) != maxPorts || len(entry.GetEndpoints()) != maxPorts+4 {
		t.Errorf("%d ports and %d endpoints", len(entry.GetPorts()), len(entry.GetEndpoints()))
	}
}

func TestNamesOfServices(t *testing.T) {
	for _, c := range []struct{ name, key, host, problem string }{
		{"web", "consul/web", "web.service.consul", ""},
		{"web.v2", "consul/web.v2", "web.v2.service.consul", ""},
		{"my_web", "consul/my-web-cc83fc32", "my_web.service.consul", ""},
		{"a b", "", "", "not a valid name"},
		{strings.Repeat("a", 64), "", "", "not the name of a host"},
	} {
		r, problems := buildFrom(t, Config{}, c.name, instanceJSON("a", "", `, "Port": 80`, ""))
		if c.problem != "" {
			if r != nil || !strings.Contains(strings.Join(problems, "\n"), c.problem) {
				t.Errorf("%s: %v, problems %v, want %s", c.name, r, problems, c.problem)
			}
			continue
		}
		if len(problems) > 0 {
			t.Errorf("%s: problems %v", c.name, problems)
			continue
		}
		if got := r.Namespace + "/" + r.Name; got != c.key || r.Spec.(*networking.ServiceEntry).GetHosts()[0] != c.host {
			t.Errorf("%s: %s, %v", c.name, got, r.Spec)
		}
	}
}
