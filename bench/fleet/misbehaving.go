package fleet

import (
	"context"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// behaviour is how a client handles responses.
type behaviour int

const (
	asEnvoys    behaviour = iota
	readingSlow           // subscribes to all resources, and reads almost nothing
	refusing              // NACKs every response, and requests it again at once
)

// pause is the time that a slow client waits before it reads a response.
const pause = time.Minute

// window returns the HTTP/2 flow-control window of the client.
func (m behaviour) window() int32 {
	if m == readingSlow {
		return 64 << 10 // the minimum, so that the server cannot send a whole response at once
	}
	return 1 << 20
}

// delay waits before the client reads a response, if it is a slow client.
func (c *client) delay(ctx context.Context) {
	if c.behaviour != readingSlow {
		return
	}
	backoff.Sleep(ctx, pause)
}

// newMisbehaving returns the slow and refusing clients. The benchmark measures their effect on the other clients. The
// fleet does not wait for them.
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

// misbehave handles a response to a slow or refusing client. Other clients use handle.
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
