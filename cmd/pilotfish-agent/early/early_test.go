package early

import (
	"strings"
	"testing"
)

func TestOnlyTheCommandIsHandedOver(t *testing.T) {
	for _, c := range []struct {
		line, rest string
		is         bool
	}{
		{"pilotfish-agent iptables -b *", "-b *", true},
		{"/usr/local/bin/pilot-agent istio-iptables --dry-run", "--dry-run", true},
		{"/bin/istio-iptables -p 1", "-p 1", true},
		{"pilotfish-agent iptables", "", true},
		{"pilotfish-agent proxy sidecar iptables", "", false},
		{"pilotfish-agent", "", false},
		{"", "", false},
	} {
		rest, is := redirection(strings.Fields(c.line))
		if is != c.is || strings.Join(rest, " ") != c.rest {
			t.Errorf("%q: %q %v", c.line, rest, is)
		}
	}
}
