package xdsproxy

import (
	"context"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// retryEpoch marks the relay's own responses with retried resources. Envoy's answers to them are not forwarded.
const retryEpoch = -1

// rewriteRetry contains a session's resources whose rewriting is retried. It is independent of upstream streams,
// because a control plane does not send accepted resources again.
type rewriteRetry struct {
	// mu is held while rewritten resources are sent to Envoy, to preserve their order.
	mu sync.Mutex
	// cancels ends a retry, by type and name. versions contains the version of the last response of each type.
	cancels  map[[2]string]context.CancelFunc
	versions map[string]string
	// receivedTypes are the types that a control plane has sent.
	receivedTypes map[string]bool
}

// supersede cancels the retries of resources that the control plane has sent again or removed; the caller holds mu.
func (g *rewriteRetry) supersede(r wire.Response) {
	if g.versions == nil {
		g.versions, g.cancels = make(map[string]string), make(map[[2]string]context.CancelFunc)
		g.receivedTypes = make(map[string]bool)
	}
	g.versions[r.TypeURL] = r.Version
	for _, one := range r.Resources {
		g.cancelRetry(r.TypeURL, one.Name)
	}
	for _, name := range r.Removed {
		g.cancelRetry(r.TypeURL, name)
	}
}

func (g *rewriteRetry) cancelRetry(typeURL, name string) {
	key := [2]string{typeURL, name}
	if end := g.cancels[key]; end != nil {
		end()
		delete(g.cancels, key)
	}
}

// scheduleRetries retries the rewriting of the resources; the caller holds mu. If keep is set, the results are recorded
// as last good configuration.
func (s *session) scheduleRetries(rewrite Rewriter, job rewriteJob, resources []Resource, keep bool) {
	for _, r := range resources {
		version := ""
		for _, one := range job.Resources {
			if one.Name == r.Name {
				version = one.Version
			}
		}
		s.retryRewrite(rewrite, job.TypeURL, version, r, keep)
	}
}

func (s *session) retryRewrite(rewrite Rewriter, typeURL, version string, r Resource, keep bool) {
	ctx, end := context.WithCancel(s.ctx)
	s.retries.cancelRetry(typeURL, r.Name)
	s.retries.cancels[[2]string{typeURL, r.Name}] = end
	s.relay.streams.Go(func() {
		defer end()
		for r.Retry != nil {
			if r.Retry(ctx) != nil {
				return
			}
			in := r
			in.Value, in.Retry = append([]byte(nil), r.Value...), nil
			out, err := rewrite(ctx, []Resource{in})
			if err != nil || len(out) != 1 {
				return
			}
			if r.Retry = out[0].Retry; r.Retry == nil {
				s.deliverRetried(ctx, typeURL, version, out[0], keep)
			}
		}
	})
}

// deliverRetried sends a retried resource to Envoy, if Envoy still subscribes to it and the control plane has not sent
// it again.
func (s *session) deliverRetried(ctx context.Context, typeURL, version string, r Resource, keep bool) {
	s.retries.mu.Lock()
	defer s.retries.mu.Unlock()
	if ctx.Err() != nil || !s.isSubscribed(typeURL, r.Name) {
		return
	}
	about := wire.Response{
		TypeURL: typeURL, Version: s.retries.versions[typeURL], Nonce: s.relay.nextNonce(),
		Resources: []wire.Resource{{Name: r.Name, Version: version}},
	}
	delete(s.retries.cancels, [2]string{typeURL, r.Name})
	f, err := marshalFrame(newRetriedResponse(s.proto, about, &anypb.Any{TypeUrl: r.Type, Value: r.Value}))
	if err == nil {
		defer f.Free()
		var kept *wire.Message
		if keep {
			kept = f
		}
		err = s.deliver(retryEpoch, about, f, kept)
	}
	if err != nil && s.ctx.Err() == nil {
		s.relay.log.Warn("a retried resource could not be sent to Envoy", "type", typeURL, "name", r.Name, "reason", err)
	}
}

func (s *session) isSubscribed(typeURL, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.state.types[typeURL]
	if t == nil {
		return false
	}
	_, ok := t.names[name]
	return ok || t.all
}

// newRetriedResponse returns the response as a message with one resource.
func newRetriedResponse(v wire.Variant, r wire.Response, body *anypb.Any) proto.Message {
	if v == wire.SotW {
		return &discoveryv3.DiscoveryResponse{TypeUrl: r.TypeURL, VersionInfo: r.Version, Nonce: r.Nonce, Resources: []*anypb.Any{body}}
	}
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeURL, SystemVersionInfo: r.Version, Nonce: r.Nonce, Resources: []*discoveryv3.Resource{
		{Name: r.Resources[0].Name, Version: r.Resources[0].Version, Resource: body},
	}}
}
