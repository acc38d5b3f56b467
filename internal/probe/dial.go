package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// Probes connect from these source addresses. The redirection rules exempt them, so that a probe reaches the
// application instead of Envoy.
var (
	sourceV4 = netip.MustParseAddr("127.0.0.6")
	sourceV6 = netip.MustParseAddr("::6")
)

// dial connects from the source address of probes. It resolves localhost to 127.0.0.1 or, if that fails, to ::1. It
// does not use /etc/hosts (RFC 6761).
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host != "localhost" {
		return dialOne(ctx, network, address, host)
	}
	conn, err := dialOne(ctx, network, net.JoinHostPort("127.0.0.1", port), "127.0.0.1")
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	if conn, v6 := dialOne(ctx, network, net.JoinHostPort("::1", port), "::1"); v6 == nil {
		return conn, nil
	}
	return nil, err
}

// dialOne connects from the source address of probes. If that address does not exist on this machine, or the
// destination is on another machine, it connects from the default address.
func dialOne(ctx context.Context, network, address, host string) (net.Conn, error) {
	target, err := netip.ParseAddr(host)
	if err != nil {
		return dialer(netip.Addr{}).DialContext(ctx, network, address)
	}
	source := sourceV4
	if !target.Unmap().Is4() {
		source = sourceV6
	}
	conn, err := dialer(source).DialContext(ctx, network, address)
	if err != nil && ctx.Err() == nil && cannotBeSource(err) {
		return dialer(netip.Addr{}).DialContext(ctx, network, address)
	}
	return conn, err
}

func cannotBeSource(err error) bool {
	for _, number := range []error{syscall.EADDRNOTAVAIL, syscall.EINVAL, syscall.ENETUNREACH, syscall.EHOSTUNREACH} {
		if errors.Is(err, number) {
			return true
		}
	}
	return false
}

func dialer(source netip.Addr) *net.Dialer {
	d := &net.Dialer{KeepAlive: -1, Control: shareSourcePorts} // a probe ends before a TCP keepalive would be sent
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return d
}
