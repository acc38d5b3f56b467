package controlplane_test

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/describe"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const entriesOfShop = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews-1, namespace: shop}
spec: {address: 10.1.2.3, serviceAccount: reviews, labels: {app: reviews, security.istio.io/tlsMode: disabled}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews-2, namespace: shop}
spec: {address: 10.1.2.4, serviceAccount: reviews, labels: {app: reviews}}
`

func TestDescribeShowsThatPoliciesAreNotEnforcedWithoutSidecar(t *testing.T) {
	dir, _, client := newInspectedServer(t)
	write(t, filepath.Join(dir, "entries.yaml"), entriesOfShop)
	var d describe.Description
	testenv.Eventually(t, "a description of the workload", func() (err error) {
		d, err = client.DescribeWithoutSidecar(t.Context(), "shop", "reviews-1")
		return err
	})
	var out bytes.Buffer
	if err := d.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"reviews-1.shop  no sidecar at 10.1.2.3\n",
		"Serves reviews.shop.svc.cluster.local:80 (HTTP, on port 80 of the workload)\n  accepts plaintext only (no sidecar)\n  clients apply VirtualService shop/reviews",
		"all clients that reach its address, in plaintext",
		"workloads that require mutual TLS (STRICT) refuse them",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the description lacks %q:\n%s", want, out.String())
		}
	}
	for _, name := range []string{"reviews-2", "nosuch"} {
		if _, err := client.DescribeWithoutSidecar(t.Context(), "shop", name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const lookedUp = entriesOfShop + `---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {clusterIP: 10.9.9.9, selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: each, namespace: shop}
spec: {clusterIP: None, selector: {app: reviews}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shop}
spec: {type: ExternalName, externalName: reviews.shop.svc.cluster.local, ports: [{port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: private, namespace: shop}
spec: {hosts: [private.example], exportTo: ["."], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.1.2.5}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec: {hosts: [outside.example], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
`

func TestServicesAreLookedUpForClientsWithoutProxy(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), lookedUp)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	both := []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.4")}
	ip := []netip.Addr{netip.MustParseAddr("10.9.9.9")}
	for _, c := range []struct {
		namespace, host      string
		addresses, instances []netip.Addr
	}{
		{"shop", "reviews", ip, both},
		{"shop", "reviews.shop", ip, both},
		{"other", "reviews.shop.svc.cluster.local", ip, both},
		{"shop", "alias", ip, both},
		{"other", "each.shop.svc.cluster.local", nil, both},
		{"other", "reviews-1.each.shop.svc.cluster.local", nil, both[:1]},
		{"shop", "private.example", nil, []netip.Addr{netip.MustParseAddr("10.1.2.5")}},
		{"other", "private.example", nil, nil},
		{"shop", "outside.example", nil, nil},
		{"other", "reviews", nil, nil},
		{"shop", "reviews-1.reviews.shop.svc.cluster.local", nil, nil},
		{"shop", "reviews-9.each.shop.svc.cluster.local", nil, nil},
	} {
		found, ok := p.LookupService(c.namespace, c.host)
		if ok != (c.instances != nil) {
			t.Errorf("%s in namespace %s: found is %t", c.host, c.namespace, ok)
			continue
		}
		compare := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
		if diff := cmp.Diff(c.addresses, found.Addresses, compare) + cmp.Diff(c.instances, found.Instances, compare); diff != "" && ok {
			t.Errorf("%s in namespace %s (-want +got):\n%s", c.host, c.namespace, diff)
		}
	}
	found, _ := p.LookupService("shop", "reviews")
	if got, want := found.Endpoints(80), []netip.AddrPort{netip.AddrPortFrom(both[0], 9080), netip.AddrPortFrom(both[1], 9080)}; !cmp.Equal(got, want, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
		t.Errorf("the endpoints are %v, want %v", got, want)
	}
	if got := found.Endpoints(81); len(got) != 0 {
		t.Errorf("the endpoints of an unknown port are %v", got)
	}
}
