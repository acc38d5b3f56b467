package iptables

import "context"

// Backend installs rule sets in one network namespace and reads back what is installed. The implementations are in the
// packages below this one; each serves one namespace. Its methods are not safe for concurrent use.
type Backend interface {
	// Name returns "nftables", "iptables-nft" or "iptables-legacy".
	Name() string
	// Apply replaces everything that this project installed earlier, by any back end, with the rule set. It is atomic:
	// on an error the previous state is restored, including routing. No packet bypasses the rules meanwhile.
	Apply(ctx context.Context, rules *RuleSet) error
	// Read returns the installed rules in the kernel's order, decoded into the model.
	Read(ctx context.Context) (*Installed, error)
	// Clean removes everything that this project installed, and nothing else.
	Clean(ctx context.Context) error
}

// Installed is the part of the kernel's state that this project installed.
type Installed struct {
	// Rules is nil when none of our rules is installed. Reasons are absent; IDs are those that the kernel stores as
	// comments.
	Rules *RuleSet
	// Strange lists rules in our tables or chains that the model cannot express, as the back end prints them.
	Strange []string
}
