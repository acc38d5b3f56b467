package registry

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func hostEntry(host, more string) string {
	return fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: %s}, spec: {hosts: [%s], resolution: STATIC, ports: [{number: 80, name: tcp}], endpoints: [{address: 10.0.0.1}]%s}}", host, host, more)
}

// The hash of these two names is the same virtual address.
const oneName, sameAddress = "n1953.example.test", "n33508.example.test"

func TestVirtualAddressDependsOnlyOnTheName(t *testing.T) {
	o := Options{Virtual: netip.MustParsePrefix("240.0.0.0/5")}
	for _, documents := range [][]string{{hostEntry(oneName, "")}, {hostEntry("other.example.test", ""), hostEntry(oneName, "")}} {
		r := Build(nil, storeOf(t, documents...), o, nil)
		if got := fmt.Sprint(service(t, r, oneName).Addresses); got != "[244.110.152.198]" {
			t.Errorf("among %d services: %s", len(documents), got)
		}
		if len(r.Problems) > 0 {
			t.Error(problems(r))
		}
	}
}

func addressesOf(t *testing.T, r *Registry, hosts ...string) string {
	t.Helper()
	var all []string
	for _, host := range hosts {
		all = append(all, fmt.Sprint(service(t, r, host).Addresses))
	}
	return strings.Join(all, " ")
}

func TestServicesNeverShareAVirtualAddress(t *testing.T) {
	o := Options{Virtual: netip.MustParsePrefix("240.0.0.0/5")}
	const first, next = "[244.110.152.198]", "[241.186.81.237]"
	for what, tc := range map[string]struct {
		documents []string
		want      string // expected addresses of oneName and sameAddress
	}{
		"names in one order":       {[]string{hostEntry(oneName, ""), hostEntry(sameAddress, "")}, first + " " + next},
		"names in the other order": {[]string{hostEntry(sameAddress, ""), hostEntry(oneName, "")}, first + " " + next},
		"written elsewhere":        {[]string{hostEntry(sameAddress, ", addresses: [10.9.9.9]"), hostEntry(oneName, "")}, first + " [10.9.9.9]"},
		"written there":            {[]string{hostEntry(sameAddress, ", addresses: [244.110.152.198]"), hostEntry(oneName, "")}, "[241.187.38.214] " + first},
	} {
		r := Build(nil, storeOf(t, tc.documents...), o, nil)
		if got := addressesOf(t, r, oneName, sameAddress); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
		if len(r.Problems) > 0 {
			t.Error(problems(r))
		}
	}
}

func TestVirtualAddressConflictsFollowTheServices(t *testing.T) {
	o := Options{Virtual: netip.MustParsePrefix("240.0.0.0/5")}
	var r *Registry
	for _, hosts := range [][]string{{sameAddress}, {sameAddress, oneName}, {sameAddress, oneName, "other.example.test"}, {sameAddress}} {
		var documents []string
		for _, host := range hosts {
			documents = append(documents, hostEntry(host, ""))
		}
		store := storeOf(t, documents...)
		r = Build(r, store, o, nil)
		if got, want := addressesOf(t, r, hosts...), addressesOf(t, Build(nil, store, o, nil), hosts...); got != want {
			t.Errorf("with %v: the incremental registry has %s, a new one has %s", hosts, got, want)
		}
		if again := Build(r, store, o, nil); again != r {
			t.Errorf("with %v: a build without changes returns a different registry", hosts)
		}
	}
}

func TestHeadlessServiceHasNoVirtualAddress(t *testing.T) {
	o := Options{Virtual: netip.MustParsePrefix("240.0.0.0/5")}
	r := Build(nil, storeOf(t,
		"{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: a}, spec: {clusterIP: None, selector: {app: a}, ports: [{port: 80}]}}",
		"{apiVersion: v1, kind: Service, metadata: {name: unset, namespace: a}, spec: {selector: {app: a}, ports: [{port: 80}]}}"), o, nil)
	if headless := service(t, r, "headless.a.svc.cluster.local"); len(headless.Addresses) > 0 || !headless.Headless() {
		t.Errorf("the headless service has the addresses %v", headless.Addresses)
	}
	if unset := service(t, r, "unset.a.svc.cluster.local"); len(unset.Addresses) != 1 || unset.Headless() {
		t.Errorf("a service without clusterIP has the addresses %v", unset.Addresses)
	}
}
