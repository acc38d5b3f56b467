// Package iptables redirects a pod's traffic to its Envoy. Options are compiled to an ordered, typed rule set with a
// reason for each rule. Everything else is derived from that rule set: nftables transactions, iptables-restore input,
// text, explanations, and the comparison with the kernel's rules.
package iptables

import (
	"net/netip"
	"strings"
)

// Table is a netfilter table. A packet traverses the tables in the order raw, mangle, nat, filter.
type Table string

// The tables.
const (
	Raw    Table = "raw"    // before connection tracking; assigns conntrack zones
	Mangle Table = "mangle" // marks, transparent proxying, invalid packets
	NAT    Table = "nat"    // redirection; sees only the first packet of a connection
	Filter Table = "filter" // rejects address families that are not captured
)

// Hook is the point of the network stack at which a base chain is called.
type Hook string

// The hooks.
const (
	Prerouting Hook = "PREROUTING" // packets received from a link, including loopback
	Output     Hook = "OUTPUT"     // packets sent by processes of the namespace
	Input      Hook = "INPUT"      // packets for local addresses of the namespace; only with Filter
	Forward    Hook = "FORWARD"    // forwarded packets; only with Filter
)

// RuleSet contains all that Apply installs in one network namespace: chains in the order of their creation, and the
// routing. The zero value does not redirect any traffic. After Compile, a RuleSet must not be modified.
type RuleSet struct {
	Chains []Chain `json:"chains"`
	// Routing is the required routing; nil if none is required.
	Routing *Routing `json:"routing,omitempty"`
	// Families lists the families to which the rules apply. Traffic of other families is not inspected.
	Families Families `json:"families"`
}

// Chain is an ordered list of rules. The kernel calls a base chain at its hook. Other chains are called by jumps from
// chains of the same table, and precede them in a RuleSet. Base chains contain only jumps. Packets that our rules do
// not redirect therefore also traverse other programs' chains at the same hook.
type Chain struct {
	Table Table  `json:"table"`
	Name  string `json:"name"`           // unique in its table; Istio's name if Istio has the chain, such as ISTIO_OUTPUT; BaseName for a base chain
	Hook  Hook   `json:"hook,omitempty"` // hook of a base chain; "" for other chains
	Rules []Rule `json:"rules"`
}

// BaseName returns the name of the base chain of a table and hook, such as nat_output.
func BaseName(t Table, h Hook) string { return strings.ToLower(string(t) + "_" + string(h)) }

// Rule applies its verdict to the packets that its match selects.
type Rule struct {
	// ID identifies the rule in differences, traces and explanations, and is its comment in the kernel. It is unique in its
	// rule set and the same in all releases: "outbound/proxy-uid-1337".
	ID      string  `json:"id"`
	Match   Match   `json:"match,omitzero"`
	Verdict Verdict `json:"verdict"`
	// Reason is the purpose of the rule, in one sentence.
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

// Match is the conjunction of its conditions. A zero field is not a condition. All addresses of one match are of the
// same family, and the rule applies only to packets of that family. Compile produces lists with several entries only
// for negated conditions (NotDestinationPorts, NotGIDs); otherwise it produces one rule per entry.
type Match struct {
	Families Families `json:"families,omitempty"` // 0: the families of the rule set
	Protocol Protocol `json:"protocol,omitempty"`

	InInterface  string `json:"inInterface,omitempty"` // exact name
	OutInterface string `json:"outInterface,omitempty"`
	NotOut       bool   `json:"notOut,omitempty"` // negates OutInterface

	Source         []netip.Prefix `json:"source,omitempty"` // any of
	NotSource      bool           `json:"notSource,omitempty"`
	Destination    []netip.Prefix `json:"destination,omitempty"` // any of
	NotDestination bool           `json:"notDestination,omitempty"`

	SourcePorts         []PortRange `json:"sourcePorts,omitempty"` // any of these; requires a protocol
	DestinationPorts    []PortRange `json:"destinationPorts,omitempty"`
	NotDestinationPorts bool        `json:"notDestinationPorts,omitempty"`

	// The owner of the sending socket; valid only in base chains of Output and in chains that they jump to.
	UIDs    []uint32 `json:"uids,omitempty"` // any of
	NotUIDs bool     `json:"notUids,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
	NotGIDs bool     `json:"notGids,omitempty"`

	Mark     *Mark `json:"mark,omitempty"`
	NotMark  bool  `json:"notMark,omitempty"`
	ConnMark *Mark `json:"connMark,omitempty"`

	// States lists the matching conntrack states of the packet.
	States []State `json:"states,omitempty"`
	// Reply restricts the match to packets that are sent to the peer that opened the connection.
	Reply bool `json:"reply,omitempty"`
}

// PortRange contains the ports from First to Last, inclusive.
type PortRange struct{ First, Last uint16 }

// Mark is the value of those bits of a packet mark or connection mark that are set in Mask.
type Mark struct{ Value, Mask uint32 }

// State is a conntrack state.
type State string

// The conntrack states.
const (
	New         State = "new"
	Established State = "established"
	Related     State = "related"
	Invalid     State = "invalid"
)

// Action is the operation of a verdict.
type Action string

// The actions. The comment of each states whether the evaluation of the table then ends or continues.
const (
	Return           Action = "RETURN"       // returns to the calling chain; a base chain then accepts the packet
	Accept           Action = "ACCEPT"       // accepts the packet; ends
	Drop             Action = "DROP"         // drops the packet; ends
	Reject           Action = "REJECT"       // drops the packet and sends a TCP reset, or ICMP port unreachable for other protocols; ends
	Jump             Action = "JUMP"         // evaluates Chain, and continues with the next rule if Chain returns
	Redirect         Action = "REDIRECT"     // changes the destination to Port of this host; ends
	TransparentProxy Action = "TPROXY"       // delivers to Port of this host with unchanged addresses, and sets the packet mark; ends
	SetMark          Action = "MARK"         // sets the packet mark; continues
	SaveMark         Action = "SAVE_MARK"    // copies the packet mark to the connection mark; continues
	RestoreMark      Action = "RESTORE_MARK" // copies the connection mark to the packet mark; continues
	Zone             Action = "CT_ZONE"      // sets the conntrack zone to ZoneID; continues; later Zone rules have no effect on the packet
)

// Verdict is an action with its parameters.
type Verdict struct {
	Action Action `json:"action"`
	Chain  string `json:"chain,omitempty"` // for Jump
	Port   uint16 `json:"port,omitempty"`  // for Redirect and TransparentProxy
	Mark   Mark   `json:"mark,omitzero"`   // for SetMark and TransparentProxy
	ZoneID uint16 `json:"zone,omitempty"`  // for Zone
}

// Routing delivers marked packets with any destination to the local host, for TPROXY. It also adds addresses to lo that
// Envoy binds.
type Routing struct {
	// Mark, Table and Priority configure the policy rule and the route. If Mark is 0, neither is installed.
	Mark  uint32 `json:"mark,omitempty"`
	Table int    `json:"table,omitempty"`
	// Priority is the priority of the policy rules. It is constant, so that a second Apply finds the existing rules.
	Priority int `json:"priority,omitempty"`
	// LoopbackAddresses are added to lo if they are missing. Envoy's inbound passthrough uses the address ::6 for
	// IPv6.
	LoopbackAddresses []netip.Prefix `json:"loopbackAddresses,omitempty"`
}
