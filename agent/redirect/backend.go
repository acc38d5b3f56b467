package redirect

import (
	"log/slog"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

// newBackend returns the backend that manages the rules in the network namespace space.
func newBackend(space namespace, choice backends.Choice, log *slog.Logger) (iptables.Backend, error) {
	return backends.New(backends.Config{NetNS: space.fd(), Choice: choice, Logger: log})
}

// usesIPTables reports whether the choice is an iptables backend.
func usesIPTables(c backends.Choice) bool { return c != backends.Auto && c != backends.NFTables }

func nftText(rules *iptables.RuleSet) (string, error) {
	text, err := nft.Text(rules)
	return text + routingText(rules), err
}
