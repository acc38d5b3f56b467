package fleet

import (
	"context"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// behaviour is how a client handles responses.
type behaviour int

const (
	asEnvoys    behaviour = iota
	readingSlow           // subscribes to everything, and reads almost nothing
	refusing              // NACKs every response, and requests it again at once
)

// pause is the delay of a slow client before each response.
const pause = time.Minute

// window returns the HTTP/2 flow-control window of the client.
func (m behaviour) window() int32 {
	if m == readingSlow {
		return 64 << 10 // the minimum, so that responses are blocked in the middle
	}
	return 1 << 20
}

// delay waits before a response is read, if the client is slow.
func (c *client) delay(ctx context.Context) {
	if c.behaviour != readingSlow {
		return
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// newMisbehaving returns the clients whose effect on the other ones is measured. The fleet does not wait for them.
func (f *Fleet) newMisbehaving(o Options) (clients []*client, err error) {
	for i := range o.Slow + o.Refusing {
		c, err := f.newClient(o.Proxies+i, o)
		if err != nil {
			return nil, err
		}
		c.behaviour = readingSlow
		if i >= o.Slow {
			c.behaviour = refusing
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// misbehave replaces handle for such a client.
func (c *client) misbehave(ctx context.Context, r *response) error {
	c.bytes.Add(int64(r.size))
	c.answers.Add(1)
	if c.behaviour == readingSlow {
		c.delay(ctx)
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
