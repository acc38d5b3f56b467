// Package nft puts rule sets in force by nftables over netlink: one table of family inet, changed in one transaction of
// the kernel's, without a program of the host.
//
// A rule of the model is a rule of the kernel, whose comment is its ID. (A TPROXY rule is two: the second drops what the
// first finds no listener for, which nftables alone would let through.) A list of several addresses, ports or ids is an
// anonymous set. Base chains are named for table and hook, nat_output; the others have their name of the contract, with
// the table before it when that is not nat: mangle_ISTIO_INBOUND.
package nft

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Table is the name of our table, of family inet.
const Table = "pilotfish"

// Name is that of this back end.
const Name = "nftables"

// ErrUnsupported is in the chain of errors that come from a kernel without nftables, or without a part of it that the
// rule set needs. Nothing was changed then; iptables may do.
var ErrUnsupported = errors.New("the kernel has no nftables for this")

// Config is what a back end needs to know.
type Config struct {
	// NetNS is a descriptor of the network namespace, which stays open as long as the back end is used; 0 or less is that
	// of the calling thread.
	NetNS int
	// RulesOnly leaves routing to somebody else: Apply and Clean do not touch it, Read does not look.
	RulesOnly bool
	// Inject is for tests: it is called before each step of a change, which fails where it returns an error.
	Inject func(step string) error
}

var _ iptables.Backend = (*Backend)(nil)
