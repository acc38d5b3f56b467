package registry

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// anyEndpoint allows gateways to call workloads on loopback, and all sockets except those of proxies.
var anyEndpoint = &EndpointPolicy{AllowUnix: []string{"/"}, AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}

func TestEndpointsOfTheProxyOrItsMachineAreRefused(t *testing.T) {
	local := &EndpointPolicy{
		AllowUnix: []string{"/run/apps", "/srv/one.sock"}, DenyUnix: []string{"/run/apps/mesh"},
		AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.77.0.0/16")},
	}
	const all, gateways, nobody = "all", "gateways", ""
	for _, c := range []struct {
		address string
		port    uint32
		policy  *EndpointPolicy
		want    string
	}{
		{"10.0.0.1", 15000, nil, nobody},
		{"app.example.com", 8080, nil, nobody},
		{"app.example.com", 0, nil, nobody},
		{"app.example.com", 15000, nil, all},
		{"app.example.com", 15000, anyEndpoint, all},
		{"app.example.com.", 15020, nil, all},
		{"app.example.com", 15021, nil, all},
		{"app.example.com", 15090, nil, all},
		{"app.example.com", 15463, nil, all},
		{"plane.example.com", 15010, nil, all},
		{"plane.example.com", 15014, nil, all},
		{"plane.example.com", 15012, nil, nobody},
		{"plane.example.com", 15016, nil, nobody},
		{"127.0.0.1", 8080, nil, gateways},
		{"127.1.2.3", 8080, local, gateways},
		{"127.77.3.1", 8080, local, nobody},
		{"127.77.3.1", 15020, local, all},
		{"127.0.0.1", 15000, nil, all},
		{"127.0.0.1", 15463, nil, all},
		{"::1", 15020, nil, all},
		{"0.0.0.0", 15000, nil, all},
		{"0.1.2.3", 8080, nil, gateways},
		{"::", 80, nil, gateways},
		{"::ffff:127.0.0.1", 15000, nil, all},
		{"::ffff:7f00:1", 80, nil, gateways},
		{"::ffff:127.77.3.1", 80, local, nobody},
		{"::127.0.0.1", 80, nil, gateways},
		{"64:ff9b::7f00:1", 80, nil, gateways},
		{"::ffff:169.254.169.254", 80, nil, gateways},
		{"169.254.169.254", 80, nil, gateways},
		{"fe80::1%eth0", 80, nil, gateways},
		{"fe80::1", 15000, nil, gateways},
		{"224.0.0.1", 80, nil, gateways},
		{"ff02::1", 80, nil, gateways},
		{"255.255.255.255", 80, nil, gateways},
		{"localhost", 8080, nil, gateways},
		{"LocalHost.", 15000, nil, all},
		{"app.localhost", 15000, local, all},
		{"localhost.localdomain", 80, nil, gateways},
		{"ip6-loopback", 80, nil, gateways},
		{"notlocalhost", 15000, nil, all},
		{"notlocalhost", 80, nil, nobody},
		{"127.1", 15000, nil, all},
		{"2130706433", 80, nil, gateways},
		{"0x7f000001", 80, nil, gateways},
		{"0x7f.1", 80, nil, gateways},
		{"*.1", 15000, nil, all},
		{"*.localhost", 80, nil, gateways},
		{"*.example.com", 15000, nil, all},
		{"*.example.com", 80, nil, nobody},
		{"unix:///run/apps/a.sock", 0, nil, all},
		{"unix:///run/apps/a.sock", 0, local, nobody},
		{"unix:///srv/one.sock", 0, local, nobody},
		{"unix:///srv/one.sock2", 0, local, all},
		{"unix:///run/appsecret/a.sock", 0, local, all},
		{"unix:///run/apps/mesh/control.sock", 0, local, all},
		{"unix:///run/apps/../mesh.sock", 0, local, all},
		{"unix:///run/apps/./a.sock", 0, local, all},
		{"unix:////run/apps/a.sock", 0, local, all},
		{"unix:///run/apps/a.sock/", 0, local, all},
		{"unix://run/apps/a.sock", 0, local, all},
		{"unix:/run/apps/a.sock", 0, nil, all},
		{"unix://@app", 0, anyEndpoint, all},
		{"unix:@app", 0, anyEndpoint, all},
		{"unix:///proc/self/cwd/etc/istio/proxy/XDS", 0, anyEndpoint, all},
		{"unix:///pods/a/workload-spiffe-uds/socket", 0, anyEndpoint, all},
	} {
		got := nobody
		switch r := (Options{Endpoints: c.policy}).Refusal(c.address, c.port); {
		case r.GatewaysOnly:
			got = gateways
		case r.Reason != "":
			got = all
		}
		if got != c.want {
			t.Errorf("%s port %d is refused for %q, want %q", c.address, c.port, got, c.want)
		}
	}
}

func TestThePortsOfTheMeshConfigurationAreReserved(t *testing.T) {
	if r := (Options{AdminPort: 16000, StatusPort: 16020}).RefuseOwn("127.0.0.1:16020"); r.Reason == "" {
		t.Error("the configured status port is allowed")
	}
	if r := (Options{AdminPort: 16000}).Refusal("app.example.com", 16000); !r.AppliesToAll() {
		t.Error("the mesh's admin port is allowed for a name")
	}
	plane := Options{Endpoints: &EndpointPolicy{PlaintextPorts: []uint32{18014}, TLSPorts: []uint32{18012}}}
	for _, endpoint := range []string{"127.0.0.1:18014", "127.0.0.1:18012"} {
		if r := plane.RefuseOwn(endpoint); r.Reason == "" {
			t.Errorf("the control plane's port %s is allowed", endpoint)
		}
	}
	if r := plane.Refusal("app.example.com", 18014); !r.AppliesToAll() {
		t.Error("the control plane's plaintext port is allowed for a name")
	}
	if r := plane.Refusal("plane.example.com", 18012); r.Reason != "" {
		t.Errorf("a TLS port is refused for a name: %s", r.Message())
	}
	if r := (Options{}).RefuseOwn("127.0.0.1:8080"); r.Reason != "" {
		t.Errorf("an application's port is refused: %s", r.Message())
	}
	if r := (Options{}).RefuseForeign("127.0.0.1:8080"); r.Reason == "" {
		t.Error("a document of another namespace may use a port of the gateway's machine")
	}
}

func TestPolicyPathsMustBeAbsoluteAndClean(t *testing.T) {
	for _, bad := range []string{"run/apps", "/run/../etc", "/run/apps/", "@apps", ""} {
		if err := (&EndpointPolicy{AllowUnix: []string{bad}}).Check(); err == nil || !strings.Contains(err.Error(), "write \"/") {
			t.Errorf("%q is allowed: %v", bad, err)
		}
	}
	if err := (&EndpointPolicy{AllowUnix: []string{"/", "/run/a.sock"}}).Check(); err != nil {
		t.Error(err)
	}
}

func TestAliasOfServiceMayHaveReservedPort(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: shop}\nspec: {selector: {app: edge}, ports: [{port: 15021, name: http}]}"
	const alias = "apiVersion: v1\nkind: Service\nmetadata: {name: alias, namespace: shop}\nspec: {type: ExternalName, externalName: edge.shop.svc.cluster.local, ports: [{port: 15021, name: http}]}"
	if r := Build(nil, storeOf(t, service, alias), Options{}, nil); len(r.Problems) != 0 {
		t.Errorf("problems are %v", r.Problems)
	}
}

const refusedEntry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: x, namespace: shop}
spec:
  hosts: [x.example.com]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: 10.0.0.1}
  - {address: 127.0.0.1}
  - {address: 127.0.0.1, ports: {http: 15000}}
  - {address: "unix:///etc/istio/proxy/XDS"}
`

func TestRefusedEndpointsAreSkipped(t *testing.T) {
	r := Build(nil, storeOf(t, refusedEntry), Options{}, nil)
	eps := r.Endpoints(r.Services[0])
	if len(eps) != 2 || eps[0].NotForGateways || !eps[1].NotForGateways {
		t.Errorf("the endpoints are %+v", eps)
	}
	want := []string{"spec.endpoints[1].address", "spec.endpoints[2].address", "spec.endpoints[3].address"}
	for i, p := range r.Problems {
		if i >= len(want) || p.Code != config.EndpointRefused || p.Field != want[i] || p.Remedy == "" || p.At.Line != 10+i {
			t.Errorf("problem %d is %v", i, p)
		}
	}
	if len(r.Problems) != len(want) {
		t.Errorf("%d problems", len(r.Problems))
	}
}

func TestOtherDocumentsWithRefusedEndpointsAreReported(t *testing.T) {
	for _, c := range []struct{ name, document, field string }{
		{"workload", "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w, namespace: shop}\nspec: {address: 127.0.0.1, labels: {app: w}}", "spec.address"},
		{"external name", "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\nspec: {type: ExternalName, externalName: localhost, ports: [{port: 15000, name: http}]}", "spec.externalName"},
		{"name that proxies look up", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: shop}\nspec: {hosts: [localhost], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}", "spec.hosts[0]"},
		{"name with a reserved port", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: shop}\nspec: {hosts: [a.example.com], resolution: DNS, ports: [{number: 80, targetPort: 15000, name: http, protocol: HTTP}]}", "spec.hosts[0]"},
		{"name with a reserved port of an endpoint", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: shop}\nspec: {hosts: [a.example.com], resolution: DNS_ROUND_ROBIN, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: b.example.com, ports: {http: 15020}}]}", "spec.endpoints[0].address"},
		{"external name with a reserved port", "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\nspec: {type: ExternalName, externalName: a.example.com, ports: [{port: 15000, name: http}]}", "spec.externalName"},
		{"name without resolution", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: shop}\nspec: {hosts: [a.example.com], resolution: NONE, ports: [{number: 15000, name: http, protocol: HTTP}]}", "spec.hosts[0]"},
		{"wildcard in requests", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: shop}\nspec: {hosts: ['*.example.com'], resolution: DYNAMIC_DNS, ports: [{number: 443, targetPort: 15000, name: tls, protocol: TLS}]}", "spec.hosts[0]"},
		{"name in requests", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: shop}\nspec: {hosts: ['*.localhost'], resolution: DYNAMIC_DNS, ports: [{number: 80, name: http, protocol: HTTP}]}", "spec.hosts[0]"},
	} {
		r := Build(nil, storeOf(t, c.document), Options{}, nil)
		if len(r.Problems) != 1 || r.Problems[0].Code != config.EndpointRefused || r.Problems[0].Field != c.field {
			t.Errorf("%s: problems are %v", c.name, r.Problems)
		}
	}
}

func TestRefusedWorkloadIsReportedAndNotUsed(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\nspec: {selector: {app: w}, ports: [{port: 80, targetPort: 15000, name: http}]}"
	const workload = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w, namespace: shop}\nspec: {address: ADDRESS, labels: {app: w}}"
	store := storeOf(t, service, strings.Replace(workload, "ADDRESS", "10.0.0.1", 1))
	local := Options{Endpoints: &EndpointPolicy{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.77.0.0/16")}}}
	r := Build(nil, store, local, nil)
	if len(r.Problems) != 0 || len(r.Endpoints(r.Services[0])) != 1 {
		t.Fatalf("problems are %v", r.Problems)
	}
	for address, field := range map[string]string{"127.0.0.1": "spec.address", "127.77.1.1": "spec.ports[0]"} {
		r := Build(r, store, local, put(t, store, strings.Replace(workload, "ADDRESS", address, 1)))
		if len(r.Problems) != 1 || r.Problems[0].Field != field || len(r.Endpoints(r.Services[0])) != 0 {
			t.Errorf("%s: problems are %v", address, r.Problems)
		}
	}
}
