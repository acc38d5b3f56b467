package dial

import (
	"context"
	"net"
)

// Localhost dials as the dialer does, but knows both loopback addresses by the name localhost, whatever the machine's list
// of names says (RFC 6761): where there is IPv6 alone, what is asked for listens at the other one.
func Localhost(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host != "localhost" {
			return d.DialContext(ctx, network, address)
		}
		conn, err := d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		if conn, v6 := d.DialContext(ctx, network, net.JoinHostPort("::1", port)); v6 == nil {
			return conn, nil
		}
		return nil, err
	}
}
