package iptables

import "context"

// Backend installs rule sets in one network namespace, and reads the installed rules. The implementations are in the
// packages nft, xtables and backends. The methods are not safe for concurrent use.
type Backend interface {
	// Name returns "nftables", "iptables-nft" or "iptables-legacy".
	Name() string
	// Apply installs the rule set and the routing, and removes all rules and routing that any back end of this project
	// installed earlier. If it fails, it restores the previous state. Packets do not bypass the rules during the
	// change.
	Apply(ctx context.Context, rules *RuleSet) error
	// Read returns the installed rules as a RuleSet, in the order of the kernel.
	Read(ctx context.Context) (*Installed, error)
	// Clean removes all rules and routing that this project installed. It does not change rules of other programs.
	Clean(ctx context.Context) error
}

// Installed is the part of the kernel's state that this project installed.
type Installed struct {
	// Rules is nil if none of our rules is installed. The IDs are the rules' comments in the kernel. Reasons are empty.
	Rules *RuleSet
	// Strange lists the rules in our tables or chains that the model cannot express, in the form in which the back end
	// prints them.
	Strange []string
}
