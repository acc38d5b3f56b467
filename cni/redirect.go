package cni

import "context"

// redirector puts rules in force in a sandbox, and proves that they are.
type redirector interface {
	apply(ctx context.Context, p *plan) error
	check(ctx context.Context, p *plan) error
}

// kernel redirects by the kernel's own means.
type kernel struct{}
