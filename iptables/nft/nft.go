// Package nft installs rule sets with nftables over netlink. It uses one table of family inet, changes it in one kernel
// transaction, and does not need a program of the host.
//
// A rule of the model becomes one kernel rule, whose comment is the rule's ID. A TPROXY rule becomes two rules. The
// second drops packets for which the first finds no listener, because nftables would otherwise accept them. A list of
// several addresses, ports or IDs becomes an anonymous set. Base chains are named after table and hook, such as
// nat_output. Other chains have Istio's name; outside the table nat, the table is a prefix: mangle_ISTIO_INBOUND.
package nft

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Table is the name of our table, of family inet.
const Table = "pilotfish"

// Name is the name of this back end.
const Name = "nftables"

// ErrUnsupported is wrapped by errors that report that the kernel does not support nftables, or a feature that the rule set
// needs. The installed rules are then unchanged, and the iptables back end may work.
var ErrUnsupported = errors.New("the kernel's nftables does not support this")

// Config configures a back end.
type Config struct {
	// NetNS is a file descriptor of the network namespace. It must remain open while the back end is used. 0 or less selects
	// the calling thread's namespace.
	NetNS int
	// RulesOnly makes the back end neither read nor change routing.
	RulesOnly bool
	// Inject is for tests. It is called before each step of a change. If it returns an error, the step fails.
	Inject func(step string) error
}

var _ iptables.Backend = (*Backend)(nil)
