package hostile

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// registrationAttacks are attempts to take over a service by registering a workload, and to get a gateway's TLS keys.
var registrationAttacks = []attack{
	{
		name: "a VM of one WorkloadGroup receives calls of another service by claiming its labels", position: workload,
		limit: "the claim is overridden and shown in /debug/registrations", service: "callers reach the service's own workload only",
		run: claimLabelsOfAnotherService,
	},
	{
		name: "a VM registers with an address of another workload, of the callers' loopback or of the metadata server", position: workload,
		limit: "the registration is refused", service: "a VM that the group allows registers",
		run: claimForeignAddresses,
	},
	{
		name: "a workload of the gateway's namespace gets the gateway's TLS key by claiming its labels", position: workload,
		limit: "no Secret is sent, and the log names the account", service: "the gateway gets its certificate and key",
		run: claimGatewayLabels,
	},
	{
		name: "a workload of the gateway's namespace gets the gateway's TLS keys through a DestinationRule", position: workload,
		limit: "no Secret is sent, whatever labels it claims", service: "the gateway gets its certificates, and that for a partner",
		run: connectAsGatewayOfRules,
	},
}

// groups are two services of VMs. Tests connect from loopback, so the annotation allows the addresses of documentation.
const groups = `
apiVersion: v1
kind: Service
metadata: {name: payments, namespace: shop}
spec: {selector: {app: payments}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: crawler, namespace: shop}
spec: {selector: {crawls: "yes"}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: payments, namespace: shop, annotations: {pilotfish.dev/member-addresses: 192.0.2.1}}
spec: {template: {serviceAccount: payments, labels: {app: payments}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: crawler, namespace: shop, annotations: {pilotfish.dev/member-addresses: 192.0.2.66}}
spec: {template: {serviceAccount: crawler, labels: {crawls: "yes"}}}
`

// vm is a member of a group whose name is that of its service account.
func vm(group, address string, labels map[string]any) node {
	return node{"sidecar", address, "shop", map[string]any{"AUTO_REGISTER_GROUP": group, "LABELS": labels}}
}

// members returns the addresses to which callers of a service connect.
func (p *plane) members(t *testing.T, service string) []string {
	t.Helper()
	name := "outbound|80||" + service + ".shop.svc.cluster.local"
	ctx, cancel := context.WithCancel(withToken(t, p.token(t, "shop", "caller")))
	defer cancel()
	_, response, err := node{"sidecar", "192.0.2.99", "shop", nil}.stream(ctx, t, p.dial(t), endpointType, name)
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, r := range response.GetResources() {
		var load endpointv3.ClusterLoadAssignment
		if err := r.GetResource().UnmarshalTo(&load); err != nil {
			t.Fatal(err)
		}
		for _, locality := range load.GetEndpoints() {
			for _, e := range locality.GetLbEndpoints() {
				addresses = append(addresses, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
			}
		}
	}
	return addresses
}

// registered waits until callers of a service connect to these addresses.
func (p *plane) registered(t *testing.T, service string, want ...string) {
	t.Helper()
	testenv.Eventually(t, "callers of "+service+" connect to its members", func() error {
		if got := p.members(t, service); !slices.Equal(got, want) {
			return fmt.Errorf("they connect to %v, want %v", got, want)
		}
		return nil
	})
}

// join registers a VM until the test ends.
func (p *plane) join(t *testing.T, n node, account string) error {
	t.Helper()
	_, _, err := n.stream(withToken(t, p.token(t, "shop", account)), t, p.dial(t), clusterType)
	return err
}

func claimLabelsOfAnotherService(t *testing.T) {
	p := startPlane(t, groups)
	if err := p.join(t, vm("payments", "192.0.2.1", map[string]any{"app": "payments"}), "payments"); err != nil {
		t.Fatal(err)
	}
	if err := p.join(t, vm("crawler", "192.0.2.66", map[string]any{"app": "payments"}), "crawler"); err != nil {
		t.Fatal(err)
	}
	p.registered(t, "crawler", "192.0.2.66") // from here on the attacker's registration is in force
	p.registered(t, "payments", "192.0.2.1")
	page, err := p.page("/debug/registrations")
	if err != nil || !strings.Contains(page, "overridden") || !strings.Contains(page, "payments") {
		t.Errorf("the overridden claim is not shown: %s, %v", page, err)
	}
}

func claimForeignAddresses(t *testing.T) {
	p := startPlane(t, groups)
	for _, address := range []string{"192.0.2.1", "127.0.0.1", "169.254.169.254", "::1", "fe80::1", "0.0.0.0"} {
		if err := p.join(t, vm("crawler", address, nil), "crawler"); err == nil {
			t.Errorf("a VM registered with the address %s", address)
		}
	}
	if err := p.join(t, vm("crawler", "192.0.2.66", nil), "crawler"); err != nil {
		t.Fatal(err)
	}
	p.registered(t, "crawler", "192.0.2.66")
}

const edge = `
apiVersion: v1
kind: Secret
metadata: {name: site, namespace: edge}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: gateway, namespace: edge}
spec: {address: 192.0.2.1, labels: {app: gateway}, serviceAccount: gateway}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: edge}
spec:
  selector: {app: gateway}
  servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: site}}]
`

func claimGatewayLabels(t *testing.T) {
	cert, key := testpki.New(t, "public").Server(t, "site.example")
	encode := base64.StdEncoding.EncodeToString
	p := startPlane(t, fmt.Sprintf(edge, encode(cert), encode(key)))
	claims := node{"router", "192.0.2.1", "edge", map[string]any{"LABELS": map[string]any{"app": "gateway"}}}
	for account, want := range map[string]int{"gateway": 1, "reviews": 0, "default": 0} {
		ctx, cancel := context.WithCancel(withToken(t, p.token(t, "edge", account)))
		_, response, err := claims.stream(ctx, t, p.dial(t), secretType, "kubernetes://site")
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if got := len(response.GetResources()); got != want {
			t.Errorf("account %s gets %d secrets, want %d", account, got, want)
		}
	}
	if log := p.output.String(); !strings.Contains(log, "edge/reviews") || strings.Contains(log, "edge/gateway") {
		t.Errorf("the log does not name the account of the attacker alone: %s", log)
	}
}

// callRules lead to partners outside the mesh: one is the gateway's own, the other a tenant's, which names the Secret of the public
// site.
const callRules = `---
apiVersion: v1
kind: Secret
metadata: {name: partner, namespace: edge}
data: {tls.crt: %[1]s, tls.key: %[2]s, ca.crt: %[1]s}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: partner, namespace: edge}
spec: {hosts: [partner.example], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: partner, namespace: edge}
spec: {host: partner.example, trafficPolicy: {tls: {mode: MUTUAL, credentialName: partner, sni: partner.example}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: simple, namespace: tenant}
spec: {hosts: [simple.example], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: simple, namespace: tenant}
spec: {host: simple.example, exportTo: ["*"], trafficPolicy: {tls: {mode: SIMPLE, credentialName: site, sni: simple.example}}}
`

func connectAsGatewayOfRules(t *testing.T) {
	cert, key := testpki.New(t, "public").Server(t, "site.example")
	encode := base64.StdEncoding.EncodeToString
	p := startPlane(t, fmt.Sprintf(edge, encode(cert), encode(key))+fmt.Sprintf(callRules, encode(cert), encode(key)))
	for _, secret := range []string{"kubernetes://site", "kubernetes://partner"} {
		for _, c := range []struct {
			account, kind, app string
			want               int
		}{
			{"gateway", "router", "gateway", 1}, {"reviews", "router", "gateway", 0}, {"reviews", "router", "other", 0}, {"reviews", "sidecar", "gateway", 0},
		} {
			claims := node{c.kind, "192.0.2.1", "edge", map[string]any{"LABELS": map[string]any{"app": c.app}}}
			ctx, cancel := context.WithCancel(withToken(t, p.token(t, "edge", c.account)))
			_, response, err := claims.stream(ctx, t, p.dial(t), secretType, secret)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(response.GetResources()); got != c.want {
				t.Errorf("account %s as a %s of %s gets %d resources of %s, want %d", c.account, c.kind, c.app, got, secret, c.want)
			}
		}
	}
}
