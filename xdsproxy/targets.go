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

// mostTargets bounds the addresses that are tried in one round, and lookupTime the resolving of one name: the answers come
// from outside.
const (
	mostTargets = 32
	lookupTime  = 5 * time.Second
)

// target is one place where a control plane may answer.
type target struct {
	// name is the address as it was configured: its host is what the certificate has to be for.
	name string
	// address is what is dialled.
	address string
}

// String is how the target is told to people.
func (t target) String() string {
	if t.name == t.address {
		return t.name
	}
	return fmt.Sprintf("%s (%s)", t.name, t.address)
}

// lookupFunc finds the addresses of a host.
type lookupFunc func(ctx context.Context, host string) ([]netip.Addr, error)

func lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// targets are all places behind the configured addresses, as they are at the moment, in an order of chance: so agents spread
// over the control planes, and do not come back to one all together. The one that was lost last comes last.
func (u *uplink) targets(ctx context.Context) (found []target, err error) {
	var errs []error
	for _, name := range u.config.Upstreams {
		resolved, err := u.resolve(ctx, name)
		if err != nil {
			errs = append(errs, err)
			u.book.connectFailed(name, err)
		}
		found = append(found, resolved...)
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	found = found[:min(len(found), mostTargets)]
	for i, t := range found {
		if t == u.lost {
			found = append(append(found[:i:i], found[i+1:]...), t)
			break
		}
	}
	u.several.Store(len(found) > 1)
	if len(found) > 0 {
		return found, nil
	}
	return nil, errors.Join(errs...)
}

// resolve gives the targets behind one configured address.
func (u *uplink) resolve(ctx context.Context, name string) ([]target, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []target{{name: name, address: name}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(lookupTime, u.config.ConnectTimeout))
	defer cancel()
	addresses, err := u.config.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	seen := make(map[netip.Addr]bool, len(addresses))
	var found []target
	for _, a := range addresses {
		if a = a.Unmap(); !seen[a] && len(found) < mostTargets {
			seen[a] = true
			found = append(found, target{name: name, address: net.JoinHostPort(a.String(), port)})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the name %s has no address", host)
	}
	return found, nil
}
