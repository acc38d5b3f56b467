package nft

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Transaction returns the datagram that installs rules in a namespace that does not have our table. It is for benchmarks
// that measure only the kernel. The kernel replies with one message, whose errno is 0 on success.
func Transaction(rules *iptables.RuleSet) ([]byte, error) {
	next := newBatch(0)
	if err := next.replace(iptables.Canonical(rules), &state{}); err != nil {
		return nil, fmt.Errorf("building a transaction: %w", err)
	}
	return next.finish(1), nil
}
