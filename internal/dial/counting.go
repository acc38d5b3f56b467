package dial

import (
	"context"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// countingCredentials counts the bytes that are received on its connections, after decryption.
type countingCredentials struct {
	credentials.TransportCredentials
	received *atomic.Int64
}

func (c *countingCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return &countingConn{conn, c.received}, info, nil
}

func (c *countingCredentials) Clone() credentials.TransportCredentials {
	return &countingCredentials{c.TransportCredentials.Clone(), c.received}
}

type countingConn struct {
	net.Conn
	received *atomic.Int64
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}
