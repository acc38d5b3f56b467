package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// maxTargets limits the number of addresses that the relay tries in one round, because it does not trust the number of
// addresses in DNS responses. lookupTimeout limits the lookup of one host.
const (
	maxTargets    = 32
	lookupTimeout = 5 * time.Second
)

// target is an address of a control plane.
type target struct {
	// name is the configured host:port. The certificate must match the host.
	name string
	// address is the resolved IP address and port.
	address string
}

// String returns the configured and the resolved address.
func (t target) String() string {
	if t.name == t.address {
		return t.name
	}
	return fmt.Sprintf("%s (%s)", t.name, t.address)
}

// lookupFunc resolves a host.
type lookupFunc func(ctx context.Context, host string) ([]netip.Addr, error)

func lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// resolveTargets resolves the configured addresses and returns the targets in random order, so that the agents of a
// mesh are distributed over the control plane's instances. The target that failed last is at the end.
func (u *upstream) resolveTargets(ctx context.Context) (found []target, err error) {
	var errs []error
	for _, name := range u.config.Upstreams {
		resolved, err := u.resolve(ctx, name)
		if err != nil {
			errs = append(errs, err)
			u.tracker.recordConnectFailure(name, err)
		}
		found = append(found, resolved...)
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	found = found[:min(len(found), maxTargets)]
	for i, t := range found {
		if t == u.lastFailed {
			found = append(append(found[:i:i], found[i+1:]...), t)
			break
		}
	}
	u.hasAlternatives.Store(len(found) > 1)
	if len(found) > 0 {
		return found, nil
	}
	return nil, errors.Join(errs...)
}

// resolve returns the targets of one configured address.
func (u *upstream) resolve(ctx context.Context, name string) ([]target, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []target{{name: name, address: name}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(lookupTimeout, u.config.ConnectTimeout))
	defer cancel()
	addresses, err := u.config.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	seen := make(map[netip.Addr]bool, len(addresses))
	var found []target
	for _, a := range addresses {
		if a = a.Unmap(); !seen[a] && len(found) < maxTargets {
			seen[a] = true
			found = append(found, target{name: name, address: net.JoinHostPort(a.String(), port)})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the name %s has no address", host)
	}
	return found, nil
}
