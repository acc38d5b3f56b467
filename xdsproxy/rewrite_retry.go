package xdsproxy

import (
	"context"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// retryEpoch is the epoch of responses that the relay builds from retried resources. The relay does not forward Envoy's
// ACKs and NACKs of these responses.
const retryEpoch = -1

// rewriteRetry contains the retries of a session's rewritten resources. A retry continues when the upstream stream ends,
// because the next control plane does not send accepted resources again.
type rewriteRetry struct {
	// mu is held while the relay sends rewritten resources to Envoy, so that their order is preserved.
	mu sync.Mutex
	// cancels contains the functions that cancel retries, by type URL and resource name. versions contains the version
	// of the last response of each type.
	cancels  map[[2]string]context.CancelFunc
	versions map[string]string
	// receivedTypes contains the types of which a control plane has sent a response.
	receivedTypes map[string]bool
}

// supersede cancels the retries of resources that the control plane has sent again or removed. The caller holds mu.
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
	if cancel := g.cancels[key]; cancel != nil {
		cancel()
		delete(g.cancels, key)
	}
}

// scheduleRetries starts a retry for each resource. If store is set and Envoy accepts the results, they are stored as
// last accepted configuration. The caller holds mu.
func (s *session) scheduleRetries(rewrite Rewriter, job rewriteJob, resources []Resource, store bool) {
	for _, r := range resources {
		version := ""
		for _, one := range job.Resources {
			if one.Name == r.Name {
				version = one.Version
			}
		}
		s.retryRewrite(rewrite, job.TypeURL, version, r, store)
	}
}

// retryRewrite rewrites a resource again in another goroutine. It repeats this until the result is final or the retry
// is canceled.
func (s *session) retryRewrite(rewrite Rewriter, typeURL, version string, r Resource, store bool) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.retries.cancelRetry(typeURL, r.Name)
	s.retries.cancels[[2]string{typeURL, r.Name}] = cancel
	s.relay.streams.Go(func() {
		defer cancel()
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
				s.sendRetried(ctx, typeURL, version, out[0], store)
			}
		}
	})
}

// sendRetried sends a retried resource to Envoy, if Envoy still subscribes to it and the control plane has not sent
// it again.
func (s *session) sendRetried(ctx context.Context, typeURL, version string, r Resource, store bool) {
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
		var stored *wire.Message
		if store {
			stored = f
		}
		err = s.sendToEnvoy(retryEpoch, about, f, stored)
	}
	if err != nil && s.ctx.Err() == nil {
		s.relay.log.Warn("cannot send a retried resource to Envoy", "type", typeURL, "name", r.Name, "reason", err)
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

// newRetriedResponse encodes r as a response that contains only one resource, whose Any is body.
func newRetriedResponse(v wire.Variant, r wire.Response, body *anypb.Any) proto.Message {
	if v == wire.SotW {
		return &discoveryv3.DiscoveryResponse{TypeUrl: r.TypeURL, VersionInfo: r.Version, Nonce: r.Nonce, Resources: []*anypb.Any{body}}
	}
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeURL, SystemVersionInfo: r.Version, Nonce: r.Nonce, Resources: []*discoveryv3.Resource{
		{Name: r.Resources[0].Name, Version: r.Resources[0].Version, Resource: body},
	}}
}
