package iptables

import "context"

// Backend puts rule sets in force in one network namespace, and tells what is in force there. The implementations are in
// the packages below this one; each is made for one namespace. Its methods are not called concurrently.
type Backend interface {
	// Name is "nftables", "iptables-nft" or "iptables-legacy".
	Name() string
	// Apply replaces whatever this project put in force before, by whichever back end's same name, with the rule set:
	// wholly, or not at all (on an error the former state is back, routing included). No packet escapes meanwhile.
	Apply(ctx context.Context, rules *RuleSet) error
	// Read gives what is in force: the rules in the kernel's order, decoded into the model.
	Read(ctx context.Context) (*Installed, error)
	// Clean takes everything of ours away, and nothing else.
	Clean(ctx context.Context) error
}

// Installed is what the kernel holds of ours.
type Installed struct {
	// Rules is nil when nothing of ours is in force. Reasons are absent; IDs are those that the kernel keeps as comments.
	Rules *RuleSet
	// Strange are rules in our tables or chains that the model has no words for, as the back end prints them.
	Strange []string
}
