package xdsproxy

import (
	"context"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// againEpoch stands for the relay's own responses of what it has rewritten again; whose answers are nobody else's business.
const againEpoch = -1

// again are a session's resources that are to be rewritten again, beside the streams upstream: a control plane does not send
// twice what Envoy has accepted.
type again struct {
	// mu is held while something rewritten is sent to Envoy, so that it comes in order.
	mu sync.Mutex
	// waiting has by type and name what ends the wait of a resource, and versions of each type what a response had last.
	waiting  map[[2]string]context.CancelFunc
	versions map[string]string
	// answered are the types that a control plane has sent.
	answered map[string]bool
}

// supersede forgets what the control plane has sent anew; the caller holds the lock.
func (g *again) supersede(r response) {
	if g.versions == nil {
		g.versions, g.waiting = make(map[string]string), make(map[[2]string]context.CancelFunc)
		g.answered = make(map[string]bool)
	}
	g.versions[r.typeURL] = r.version
	for _, one := range r.resources {
		g.forget(r.typeURL, one.name)
	}
	for _, name := range r.removed {
		g.forget(r.typeURL, name)
	}
}

func (g *again) forget(typeURL, name string) {
	key := [2]string{typeURL, name}
	if end := g.waiting[key]; end != nil {
		end()
		delete(g.waiting, key)
	}
}

// rewriteAgain waits for each of the resources until there may be something better; the caller holds the lock. What comes of
// it is kept if keep is set.
func (s *session) rewriteAgain(rewrite Rewriter, job rewriteJob, resources []Resource, keep bool) {
	for _, r := range resources {
		version := ""
		for _, one := range job.resources {
			if one.name == r.Name {
				version = one.version
			}
		}
		s.awaitBetter(rewrite, job.typeURL, version, r, keep)
	}
}

func (s *session) awaitBetter(rewrite Rewriter, typeURL, version string, r Resource, keep bool) {
	ctx, end := context.WithCancel(s.ctx)
	s.again.forget(typeURL, r.Name)
	s.again.waiting[[2]string{typeURL, r.Name}] = end
	s.relay.streams.Go(func() {
		defer end()
		for r.Again != nil {
			if r.Again(ctx) != nil {
				return
			}
			in := r
			in.Value, in.Again = append([]byte(nil), r.Value...), nil
			out, err := rewrite(ctx, []Resource{in})
			if err != nil || len(out) != 1 {
				return
			}
			if r.Again = out[0].Again; r.Again == nil {
				s.deliverBetter(ctx, typeURL, version, out[0], keep)
			}
		}
	})
}

// deliverBetter sends Envoy a resource that was rewritten again, if it still is what the control plane wants Envoy to have.
func (s *session) deliverBetter(ctx context.Context, typeURL, version string, r Resource, keep bool) {
	s.again.mu.Lock()
	defer s.again.mu.Unlock()
	if ctx.Err() != nil || !s.asksFor(typeURL, r.Name) {
		return
	}
	about := response{
		typeURL: typeURL, version: s.again.versions[typeURL], nonce: s.relay.nextNonce(),
		resources: []resource{{name: r.Name, version: version}},
	}
	delete(s.again.waiting, [2]string{typeURL, r.Name})
	f, err := marshalled(about.message(s.proto, &anypb.Any{TypeUrl: r.Type, Value: r.Value}))
	if err == nil {
		defer f.free()
		var kept *frame
		if keep {
			kept = f
		}
		err = s.deliver(againEpoch, about, f, kept)
	}
	if err != nil && s.ctx.Err() == nil {
		s.relay.log.Warn("a resource that was rewritten again did not get to Envoy", "type", typeURL, "name", r.Name, "reason", err)
	}
}

func (s *session) asksFor(typeURL, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.state.types[typeURL]
	if t == nil {
		return false
	}
	_, asked := t.names[name]
	return asked || t.all
}

// message is a response with one resource.
func (r *response) message(v variant, body *anypb.Any) proto.Message {
	if v == sotw {
		return &discoveryv3.DiscoveryResponse{TypeUrl: r.typeURL, VersionInfo: r.version, Nonce: r.nonce, Resources: []*anypb.Any{body}}
	}
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.typeURL, SystemVersionInfo: r.version, Nonce: r.nonce, Resources: []*discoveryv3.Resource{
		{Name: r.resources[0].name, Version: r.resources[0].version, Resource: body},
	}}
}
