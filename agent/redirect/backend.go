package redirect

import (
	"log/slog"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

// newBackend is who puts rules in force in the namespace, and reads them.
func newBackend(space namespace, choice backends.Choice, log *slog.Logger) (iptables.Backend, error) {
	return backends.New(backends.Config{NetNS: space.fd(), Choice: choice, Logger: log})
}

// usesIPTables tells whether iptables is asked for.
func usesIPTables(c backends.Choice) bool { return c != backends.Auto && c != backends.NFTables }

func nftText(rules *iptables.RuleSet) (string, error) {
	text, err := nft.Text(rules)
	return text + routingText(rules), err
}
