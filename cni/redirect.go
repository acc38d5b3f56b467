package cni

import (
	"context"
	"os"
)

// redirector applies rules in a sandbox and verifies them.
type redirector interface {
	apply(ctx context.Context, p *plan) error
	check(ctx context.Context, p *plan) error
	// repairRules removes rules and routing that are incomplete because the process that installed them was killed.
	repairRules(ctx context.Context, netns *os.File) error
	// clean removes all of pilotfish's rules and routes.
	clean(ctx context.Context, netns *os.File) error
}

// kernel is the redirector that installs rules in the kernel's packet filter (nftables or iptables).
type kernel struct{}
