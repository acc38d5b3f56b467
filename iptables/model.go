// Package iptables steers a pod's traffic into its Envoy: options become an ordered, typed rule set with a reason for
// each rule, and everything else (nftables over netlink, iptables-restore, text, prose, explanations, what the kernel is
// compared with) is made from that rule set.
package iptables

import (
	"net/netip"
	"strings"
)

// Table is one of the stages of netfilter that redirection uses. Their order in the path of a packet is raw, mangle, nat,
// filter.
type Table string

// The tables.
const (
	Raw    Table = "raw"    // before connection tracking: zones
	Mangle Table = "mangle" // marks, transparent proxying, invalid packets
	NAT    Table = "nat"    // redirection; sees only the first packet of a connection
	Filter Table = "filter" // refusal of a family that is not captured; nothing else is refused there
)

// Hook is the point of the network stack at which a base chain is called.
type Hook string

// The hooks.
const (
	Prerouting Hook = "PREROUTING" // what comes in from a link, loopback included
	Output     Hook = "OUTPUT"     // what processes of the namespace send
	Input      Hook = "INPUT"      // what comes in for the namespace itself; only with Filter
	Forward    Hook = "FORWARD"    // what goes through to somewhere else; only with Filter
)

// RuleSet is the whole of what is put in force in one network namespace: chains in the order in which they are made, and
// what routing needs beside them. The zero value redirects nothing. A RuleSet is not changed once it is made.
type RuleSet struct {
	Chains []Chain `json:"chains"`
	// Routing is what else is needed of the namespace; nil if nothing.
	Routing *Routing `json:"routing,omitempty"`
	// Families are those that the rules are for. Traffic of another one is not looked at.
	Families Families `json:"families"`
}

// Chain is an ordered list of rules. A base chain is called by the kernel at its hook, every other one by a jump from a
// chain of its table; the chains that a chain jumps to come before it. The rules of base chains are jumps alone, so that
// what they share a hook with sees every packet that ours let go.
type Chain struct {
	Table Table  `json:"table"`
	Name  string `json:"name"`           // unique in its table; of the contract where it has one: ISTIO_OUTPUT; of a base chain BaseName
	Hook  Hook   `json:"hook,omitempty"` // of a base chain; "" for the others
	Rules []Rule `json:"rules"`
}

// BaseName is the name of the base chain of a table and hook, as nat_output.
func BaseName(t Table, h Hook) string { return strings.ToLower(string(t) + "_" + string(h)) }

// Rule does what its verdict says to the packets that its match holds for.
type Rule struct {
	// ID names the rule in differences, traces and explanations, and in the kernel (as comment). It is unique in its rule
	// set and stable from version to version: "outbound/proxy-uid-1337".
	ID      string  `json:"id"`
	Match   Match   `json:"match,omitzero"`
	Verdict Verdict `json:"verdict"`
	// Reason says in a sentence why the rule is there.
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

// The protocols that rules tell apart.
const (
	AnyProtocol Protocol = ""
	TCP         Protocol = "tcp"
	UDP         Protocol = "udp"
)

// Match is the conjunction of its conditions; a zero field is no condition. A rule with a condition on addresses holds only
// for packets of the addresses' family; all addresses of one match are of one family. Compile gives a list more than one
// entry only where it is negated (NotDestinationPorts, NotGIDs): "any of" is several rules.
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

	// Owner of the sending socket, in base chains of Output and what they jump to.
	UIDs    []uint32 `json:"uids,omitempty"` // any of
	NotUIDs bool     `json:"notUids,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
	NotGIDs bool     `json:"notGids,omitempty"`

	Mark     *Mark `json:"mark,omitempty"`
	NotMark  bool  `json:"notMark,omitempty"`
	ConnMark *Mark `json:"connMark,omitempty"`

	// States of connection tracking, any of: "new", "established", "related", "invalid".
	States []State `json:"states,omitempty"`
	// Reply holds for packets to who began the connection.
	Reply bool `json:"reply,omitempty"`
}

// PortRange is the ports from First to Last, both included.
type PortRange struct{ First, Last uint16 }

// Mark is a value of the bits of Mask.
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

// Action is what a verdict does.
type Action string

// The actions. Those that end the walk of a packet through the table say so.
const (
	Return           Action = "RETURN"       // to the calling chain; from a base chain: accepted
	Accept           Action = "ACCEPT"       // ends the table's walk
	Drop             Action = "DROP"         // ends the packet
	Reject           Action = "REJECT"       // ends the packet with a TCP reset, or for another protocol ICMP's port unreachable
	Jump             Action = "JUMP"         // to Chain, and on with the next rule if that returns
	Redirect         Action = "REDIRECT"     // to Port of this host; ends the walk
	TransparentProxy Action = "TPROXY"       // to Port of this host, marked, destination unchanged; ends the walk
	SetMark          Action = "MARK"         // of the packet; the walk goes on
	SaveMark         Action = "SAVE_MARK"    // connection's mark := packet's; goes on
	RestoreMark      Action = "RESTORE_MARK" // packet's mark := connection's; goes on
	Zone             Action = "CT_ZONE"      // of connection tracking := ZoneID; goes on; only the first one of a packet counts
)

// Verdict is an action with what it needs.
type Verdict struct {
	Action Action `json:"action"`
	Chain  string `json:"chain,omitempty"` // of Jump
	Port   uint16 `json:"port,omitempty"`  // of Redirect and TransparentProxy
	Mark   Mark   `json:"mark,omitzero"`   // of SetMark and TransparentProxy
	ZoneID uint16 `json:"zone,omitempty"`  // of Zone
}

// Routing sends marked packets of any destination to the local host, for sockets that accept them (TPROXY), and gives the
// loopback link the addresses that Envoy binds.
type Routing struct {
	// Mark, Table and Priority are of the policy rule and the route; there is none where Mark is 0.
	Mark  uint32 `json:"mark,omitempty"`
	Table int    `json:"table,omitempty"`
	// Priority of the rules, fixed so that a second apply finds them.
	Priority int `json:"priority,omitempty"`
	// LoopbackAddresses are added to lo where they are missing (::6, the inbound pass-through address of IPv6).
	LoopbackAddresses []netip.Prefix `json:"loopbackAddresses,omitempty"`
}
