package mesh

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func TestMeshNamesAreNotForwarded(t *testing.T) {
	p := &capturedPlacement{plan: newAddressPlan(topology.FirstNetwork)}
	for name, want := range map[string]int{
		HostName + ".":                           dns.RcodeSuccess,
		HostName + ".default.svc.cluster.local.": dns.RcodeNameError,
		HostName + ".corp.example.":              dns.RcodeNameError,
		"Nosuch.default.svc.Cluster.Local.":      dns.RcodeNameError,
		"cluster.local.":                         dns.RcodeNameError,
		"www.example.com.":                       -1,
		"notcluster.local.":                      -1,
	} {
		answer := p.answerQuery(new(dns.Msg).SetQuestion(name, dns.TypeA), netip.Addr{})
		if got := rcodeOf(answer); got != want {
			t.Errorf("%s: answered with %d, want %d", name, got, want)
		}
		if want == dns.RcodeSuccess && len(answer.Answer) != 1 {
			t.Errorf("%s: %v", name, answer)
		}
	}
}

// rcodeOf returns the response code of a query, or -1 if the query is forwarded.
func rcodeOf(answer *dns.Msg) int {
	if answer == nil {
		return -1
	}
	return answer.Rcode
}
