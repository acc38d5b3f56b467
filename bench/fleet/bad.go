package fleet

import (
	"context"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// manner is how a client takes its responses.
type manner int

const (
	asEnvoys    manner = iota
	readingSlow        // it asks for everything, and reads next to nothing of it
	refusing           // it refuses all, and asks for it again at once
)

// pause is how long a client that reads slowly waits before each response.
const pause = time.Minute

// window is how much may be on the way to a client that has not read it.
func (m manner) window() int32 {
	if m == readingSlow {
		return 64 << 10 // the least; what it is sent stops in the middle
	}
	return 1 << 20
}

// dawdle waits before anything is read, where that is the client's manner.
func (c *client) dawdle(ctx context.Context) {
	if c.manner != readingSlow {
		return
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// bad are the clients whose cost to the others is measured. Nobody waits for them.
func (f *Fleet) bad(o Options) (clients []*client, err error) {
	for i := range o.Slow + o.Refusing {
		c, err := f.newClient(o.Proxies+i, o)
		if err != nil {
			return nil, err
		}
		c.manner = readingSlow
		if i >= o.Slow {
			c.manner = refusing
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// misbehave does in the place of take what such a client does with a response.
func (c *client) misbehave(ctx context.Context, r *response) error {
	c.bytes.Add(int64(r.size))
	c.answers.Add(1)
	if c.manner == readingSlow {
		c.dawdle(ctx)
		return ctx.Err()
	}
	for _, request := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: r.typeURL, ResponseNonce: r.nonce, ErrorDetail: &statuspb.Status{Code: 13, Message: "this client refuses everything"}},
		{TypeUrl: r.typeURL, ResourceNamesUnsubscribe: []string{"*"}},
		{TypeUrl: r.typeURL, ResourceNamesSubscribe: []string{"*"}},
	} {
		if err := c.stream.SendMsg(request); err != nil {
			return err
		}
	}
	return nil
}
