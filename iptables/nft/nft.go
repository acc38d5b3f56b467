// Package nft installs rule sets with nftables over netlink: one table of family inet, changed in one kernel
// transaction, without a program of the host.
//
// A rule of the model is one kernel rule, whose comment is its ID. (A TPROXY rule is two: the second drops packets for
// which the first finds no listener, which nftables would otherwise accept.) A list of several addresses, ports or IDs
// is an anonymous set. Base chains are named by table and hook, such as nat_output. Other chains have Istio's name,
// with the table as prefix if that is not nat: mangle_ISTIO_INBOUND.
package nft

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Table is the name of our table, of family inet.
const Table = "pilotfish"

// Name is the name of this back end.
const Name = "nftables"

// ErrUnsupported is wrapped by errors from a kernel without nftables, or without a feature of it that the rule set
// needs. Nothing was changed then; iptables may work.
var ErrUnsupported = errors.New("the kernel's nftables does not support this")

// Config configures a back end.
type Config struct {
	// NetNS is a descriptor of the network namespace, which must stay open as long as the back end is used; 0 or less
	// selects the calling thread's.
	NetNS int
	// RulesOnly leaves routing unchanged by Apply and Clean, and unread by Read.
	RulesOnly bool
	// Inject is for tests. It is called before each step of a change; an error makes the step fail.
	Inject func(step string) error
}

var _ iptables.Backend = (*Backend)(nil)
