package nft

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Transaction is the datagram that puts rules in force in a namespace without our table, whatever else changes there: for
// measuring what the kernel's part of it takes. The kernel answers with one message, an errno of 0 if all is well.
func Transaction(rules *iptables.RuleSet) ([]byte, error) {
	next := newBatch(0)
	if err := next.replace(iptables.Canonical(rules), &state{}); err != nil {
		return nil, fmt.Errorf("make a transaction: %w", err)
	}
	return next.finish(1), nil
}
