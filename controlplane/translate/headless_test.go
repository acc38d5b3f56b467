package translate_test

import (
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

const unservedHeadless = `
apiVersion: v1
kind: Service
metadata: {name: db, namespace: one}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp-db, port: 3306}]}
`

// Envoy rejects a listener without filter chains. The control plane would then attribute the rejection to a valid
// document.
func TestHeadlessServiceWithoutEndpointsHasNoListener(t *testing.T) {
	for what, more := range map[string]string{"nowhere": "", "somewhere": `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-0, namespace: one}
spec: {address: 127.203.40.2, labels: {app: db}}
`} {
		m := newTestMesh(t, nil, unservedHeadless, more)
		listeners, err := translate.Listeners(m.snap, proxy(t, "sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, r := range listeners {
			var l listenerv3.Listener
			if err := r.Body.UnmarshalTo(&l); err != nil {
				t.Fatal(err)
			}
			found = found || l.Address.GetSocketAddress().GetPortValue() == 3306
			if len(l.FilterChains) == 0 && l.DefaultFilterChain == nil {
				t.Errorf("workload %s: listener %s has no filter chains", what, l.Name)
			}
		}
		if found != (what == "somewhere") {
			t.Errorf("workload %s: the service's port has a listener: %v", what, found)
		}
	}
}

const datagramsAlone = `
apiVersion: v1
kind: Service
metadata: {name: syslog, namespace: one}
spec: {clusterIP: None, selector: {app: syslog}, ports: [{name: log, port: 514, targetPort: 5514, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: resolver, namespace: one}
spec: {clusterIP: None, selector: {app: syslog}, ports: [{name: dns, port: 53, targetPort: 1053, protocol: UDP}, {name: dns-tcp, port: 53, targetPort: 2053}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: syslog-0, namespace: one}
spec: {address: 127.203.40.2, labels: {app: syslog}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: syslog-1, namespace: one}
spec: {address: 127.203.40.3, labels: {app: syslog}}
`

// TestHeadlessUDPServiceHasNames: proxies do not forward UDP, so a service with only UDP ports has no endpoints in xDS.
// The agent must resolve its name nevertheless.
func TestHeadlessUDPServiceHasNames(t *testing.T) {
	for _, how := range []string{" INTERCEPTION_MODE=REDIRECT", ""} {
		proxied := "sidecar a-1.one 127.203.41.1 app=a" + how
		m := newTestMesh(t, nil, datagramsAlone)
		all := func(service string, ports ...string) map[string]translate.DescribedName {
			host := service + ".one.svc.cluster.local"
			one := translate.DescribedName{Registry: "Kubernetes", Namespace: "one"}
			whole, first, second := one, one, one
			whole.ShortName, whole.IPs, whole.Ports = service, []string{"127.203.40.2", "127.203.40.3"}, ports
			first.ShortName, first.IPs = "syslog-0."+service, whole.IPs[:1]
			second.ShortName, second.IPs = "syslog-1."+service, whole.IPs[1:]
			return map[string]translate.DescribedName{host: whole, "syslog-0." + host: first, "syslog-1." + host: second}
		}
		want := all("syslog", "_log._udp 5514")
		for host, name := range all("resolver", "_dns._udp 1053", "_dns-tcp._tcp 2053") {
			want[host] = name
		}
		if diff := cmp.Diff(want, names(t, m, proxied)); diff != "" {
			t.Errorf("%q: %s", how, diff)
		}
		// The change affects the proxies' name tables.
		change := m.delete(config.Key{Kind: config.WorkloadEntry, Namespace: "one", Name: "syslog-0"})
		var changed []string
		for _, svc := range change.Endpoints {
			changed = append(changed, svc.Name)
		}
		if !slices.Contains(changed, "syslog") {
			t.Errorf("removing a workload by %q changed only the services %q", how, changed)
		}
		if ips := names(t, m, proxied)["syslog.one.svc.cluster.local"].IPs; !slices.Equal(ips, []string{"127.203.40.3"}) {
			t.Errorf("after the change %q the name resolves to %q", how, ips)
		}
	}
}

// TestPodsOfAHeadlessServiceHaveNames: each pod with the subdomain of its Service has a name with all its addresses.
func TestPodsOfAHeadlessServiceHaveNames(t *testing.T) {
	const cluster = `
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: one}, spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 3306}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: one, labels: {app: db}}, spec: {hostname: db-0, subdomain: db}, status: {podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other, namespace: one, labels: {app: db}}, status: {podIP: 10.1.0.2}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-4, namespace: one, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: tcp, port: 3306}], endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Pod, name: db-0}}, {addresses: [10.1.0.2], targetRef: {kind: Pod, name: other}}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-6, namespace: one, labels: {kubernetes.io/service-name: db}}, addressType: IPv6, ports: [{name: tcp, port: 3306}], endpoints: [{addresses: ["fd00::1"], targetRef: {kind: Pod, name: db-0}}]}
`
	const host = "db.one.svc.cluster.local"
	one := translate.DescribedName{Registry: "Kubernetes", Namespace: "one"}
	whole, pod := one, one
	whole.ShortName, whole.IPs, whole.Ports = "db", []string{"10.1.0.1", "10.1.0.2", "fd00::1"}, []string{"_tcp._tcp 3306"}
	pod.ShortName, pod.IPs = "db-0.db", []string{"10.1.0.1", "fd00::1"}
	want := map[string]translate.DescribedName{host: whole, "db-0." + host: pod}
	if diff := cmp.Diff(want, names(t, newTestMesh(t, nil, cluster), "sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT")); diff != "" {
		t.Error(diff)
	}
}
