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

// These two names lead to one address.
const oneName, sameAddress = "n1953.example.test", "n33508.example.test"

func TestAVirtualAddressFollowsFromTheNameAlone(t *testing.T) {
	o := Options{Virtual: netip.MustParsePrefix("240.0.0.0/5")}
	for _, documents := range [][]string{{hostEntry(oneName, "")}, {hostEntry("other.example.test", ""), hostEntry(oneName, "")}} {
		r := Build(nil, storeOf(t, documents...), o, nil)
		if got := fmt.Sprint(service(t, r, oneName).Addresses); got != "[244.110.152.198]" {
			t.Errorf("among %d: %s", len(documents), got)
		}
		if len(r.Problems) > 0 {
			t.Error(problems(r))
		}
	}
}

func TestServicesWithOneVirtualAddressAreToldOf(t *testing.T) {
	o := Options{Virtual: netip.MustParsePrefix("240.0.0.0/5")}
	r := Build(nil, storeOf(t, hostEntry(sameAddress, ""), hostEntry(oneName, "")), o, nil)
	if said := problems(r); len(r.Problems) != 1 || !strings.Contains(said, sameAddress) || !strings.Contains(said, "address of "+oneName+", 244.110.152.198") {
		t.Errorf("told %q", said)
	}
	r = Build(nil, storeOf(t, hostEntry(sameAddress, ", addresses: [10.9.9.9]"), hostEntry(oneName, "")), o, nil)
	if len(r.Problems) != 0 {
		t.Errorf("with an address of its own: %s", problems(r))
	}
}
