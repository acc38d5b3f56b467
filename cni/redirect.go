package cni

import (
	"context"
	"os"
)

// redirector puts rules in force in a sandbox, and proves that they are.
type redirector interface {
	apply(ctx context.Context, p *plan) error
	check(ctx context.Context, p *plan) error
	// heal takes away what an apply left that was killed before there were rules.
	heal(ctx context.Context, netns *os.File) error
	// clean takes away all that is ours.
	clean(ctx context.Context, netns *os.File) error
}

// kernel redirects by the kernel's own means.
type kernel struct{}
