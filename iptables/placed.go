package iptables

// PlacedRule is a rule where a back end has it in the kernel, ours or somebody else's.
type PlacedRule struct {
	Family Families
	Table  string
	Chain  string
	Number int // in its chain, from 1
	// Policy is what ends the chain: the chain's policy, or the way back to where it was called from.
	Policy bool
	// Comment is a rule's of ours ID.
	Comment string
	Verdict string // "drop", the chain that it jumps to, or the name of its target
}
