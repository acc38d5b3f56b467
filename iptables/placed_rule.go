package iptables

// PlacedRule is a rule at its position in the kernel. It may belong to this project or to another program.
type PlacedRule struct {
	Family Families
	Table  string
	Chain  string
	Number int // in its chain, from 1
	// Policy reports that this is the end of the chain: its policy, or the return to the calling chain.
	Policy bool
	// Comment is the ID if the rule is ours.
	Comment string
	Verdict string // "drop", the chain that it jumps to, or the name of its target
}
