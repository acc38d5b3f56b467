// Package iptables redirects a pod's traffic to its Envoy. Options are compiled to an ordered, typed rule set with a
// reason for each rule. Everything else is derived from that rule set: nftables transactions, iptables-restore input,
// text, explanations, and the comparison with the kernel's rules.
package iptables

import (
	"net/netip"
	"strings"
)

// Table is one of the netfilter tables that redirection uses. A packet traverses them in the order raw, mangle, nat,
// filter.
type Table string

// The tables.
const (
	Raw    Table = "raw"    // before connection tracking: zones
	Mangle Table = "mangle" // marks, transparent proxying, invalid packets
	NAT    Table = "nat"    // redirection; sees only the first packet of a connection
	Filter Table = "filter" // rejection of a family that is not captured; nothing else is rejected there
)

// Hook is the point of the network stack at which a base chain is called.
type Hook string

// The hooks.
const (
	Prerouting Hook = "PREROUTING" // packets received from a link, including loopback
	Output     Hook = "OUTPUT"     // packets sent by processes of the namespace
	Input      Hook = "INPUT"      // packets for the namespace itself; only with Filter
	Forward    Hook = "FORWARD"    // forwarded packets; only with Filter
)

// RuleSet is everything that is installed in one network namespace: chains in the order of their creation, and the
// routing. The zero value redirects nothing. A RuleSet is immutable.
type RuleSet struct {
	Chains []Chain `json:"chains"`
	// Routing is the required routing; nil if none is required.
	Routing *Routing `json:"routing,omitempty"`
	// Families lists the families to which the rules apply. Traffic of other families is not inspected.
	Families Families `json:"families"`
}

// Chain is an ordered list of rules. The kernel calls a base chain at its hook; other chains are called by jumps from
// chains of the same table, and precede their callers. Base chains contain only jumps, so that other programs' chains
// at the same hook see every packet that our rules do not redirect.
type Chain struct {
	Table Table  `json:"table"`
	Name  string `json:"name"`           // unique in its table; Istio's name where it exists, such as ISTIO_OUTPUT; BaseName for a base chain
	Hook  Hook   `json:"hook,omitempty"` // of a base chain; "" for the others
	Rules []Rule `json:"rules"`
}

// BaseName returns the name of the base chain of a table and hook, such as nat_output.
func BaseName(t Table, h Hook) string { return strings.ToLower(string(t) + "_" + string(h)) }

// Rule applies its verdict to the packets that meet its match.
type Rule struct {
	// ID names the rule in differences, traces and explanations, and in the kernel (as comment). It is unique in its rule
	// set and stable from version to version: "outbound/proxy-uid-1337".
	ID      string  `json:"id"`
	Match   Match   `json:"match,omitzero"`
	Verdict Verdict `json:"verdict"`
	// Reason explains in a sentence why the rule exists.
	Reason string `json:"reason,omitempty"`
}

// Families is a set of address families.
type Families uint8

// The address families.
const (
	IPv4 Families = 1 << iota
	IPv6
	BothFamilies = IPv4 | IPv6
)

// Protocol is a transport protocol, or any.
type Protocol string

// The protocols that rules can match.
const (
	AnyProtocol Protocol = ""
	TCP         Protocol = "tcp"
	UDP         Protocol = "udp"
)

// Match is the conjunction of its conditions; a zero field is no condition. A rule with an address condition applies
// only to packets of that family; all addresses of one match have the same family. Compile produces lists of several
// entries only for negated conditions (NotDestinationPorts, NotGIDs): "any of" is compiled to several rules.
type Match struct {
	Families Families `json:"families,omitempty"` // 0: those of the rule set
	Protocol Protocol `json:"protocol,omitempty"`

	InInterface  string `json:"inInterface,omitempty"` // exact name
	OutInterface string `json:"outInterface,omitempty"`
	NotOut       bool   `json:"notOut,omitempty"` // negates OutInterface

	Source         []netip.Prefix `json:"source,omitempty"` // any of
	NotSource      bool           `json:"notSource,omitempty"`
	Destination    []netip.Prefix `json:"destination,omitempty"` // any of
	NotDestination bool           `json:"notDestination,omitempty"`

	SourcePorts         []PortRange `json:"sourcePorts,omitempty"` // any of; needs a protocol
	DestinationPorts    []PortRange `json:"destinationPorts,omitempty"`
	NotDestinationPorts bool        `json:"notDestinationPorts,omitempty"`

	// The owner of the sending socket; valid in base chains of Output and the chains that they jump to.
	UIDs    []uint32 `json:"uids,omitempty"` // any of
	NotUIDs bool     `json:"notUids,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
	NotGIDs bool     `json:"notGids,omitempty"`

	Mark     *Mark `json:"mark,omitempty"`
	NotMark  bool  `json:"notMark,omitempty"`
	ConnMark *Mark `json:"connMark,omitempty"`

	// States of connection tracking, any of: "new", "established", "related", "invalid".
	States []State `json:"states,omitempty"`
	// Reply matches packets that are sent to the peer that opened the connection.
	Reply bool `json:"reply,omitempty"`
}

// PortRange is the ports from First to Last, inclusive.
type PortRange struct{ First, Last uint16 }

// Mark is the value of the bits in Mask.
type Mark struct{ Value, Mask uint32 }

// State is a state of connection tracking.
type State string

// The states of connection tracking.
const (
	New         State = "new"
	Established State = "established"
	Related     State = "related"
	Invalid     State = "invalid"
)

// Action is the operation of a verdict.
type Action string

// The actions. The comments state which of them end the evaluation of the table.
const (
	Return           Action = "RETURN"       // to the calling chain; from a base chain: accepted
	Accept           Action = "ACCEPT"       // ends the evaluation of the table
	Drop             Action = "DROP"         // ends the packet
	Reject           Action = "REJECT"       // ends the packet with a TCP reset, or for another protocol ICMP's port unreachable
	Jump             Action = "JUMP"         // to Chain; continues with the next rule if that returns
	Redirect         Action = "REDIRECT"     // to Port of this host; ends the evaluation
	TransparentProxy Action = "TPROXY"       // to Port of this host, marked, destination unchanged; ends the evaluation
	SetMark          Action = "MARK"         // of the packet; continues
	SaveMark         Action = "SAVE_MARK"    // connection's mark := packet's; continues
	RestoreMark      Action = "RESTORE_MARK" // packet's mark := connection's; continues
	Zone             Action = "CT_ZONE"      // zone of connection tracking := ZoneID; continues; only the first one of a packet is effective
)

// Verdict is an action with its parameters.
type Verdict struct {
	Action Action `json:"action"`
	Chain  string `json:"chain,omitempty"` // of Jump
	Port   uint16 `json:"port,omitempty"`  // of Redirect and TransparentProxy
	Mark   Mark   `json:"mark,omitzero"`   // of SetMark and TransparentProxy
	ZoneID uint16 `json:"zone,omitempty"`  // of Zone
}

// Routing delivers marked packets of any destination to the local host, for transparent sockets (TPROXY), and adds the
// addresses that Envoy binds to the loopback link.
type Routing struct {
	// Mark, Table and Priority belong to the policy rule and the route. If Mark is 0, there are none.
	Mark  uint32 `json:"mark,omitempty"`
	Table int    `json:"table,omitempty"`
	// Priority of the rules. It is fixed so that a second apply finds them.
	Priority int `json:"priority,omitempty"`
	// LoopbackAddresses are added to lo if they are missing (::6, the inbound passthrough address of IPv6).
	LoopbackAddresses []netip.Prefix `json:"loopbackAddresses,omitempty"`
}
