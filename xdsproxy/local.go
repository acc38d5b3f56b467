package xdsproxy

import (
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// LocalType is a type of resource that is meant for the agent and not for Envoy: a table of names, say. The relay
// subscribes to all of it once on each stream upstream, after Envoy's first request for listeners (before that, control
// planes do not know the proxy), with what it has from streams before, and answers the responses itself.
type LocalType struct {
	TypeURL string
	// Apply takes the contents of the resources of one response: the values of its Anys. An error rejects the response, and
	// becomes the reason that the control plane gets. It is called for one response after the other, and must not block.
	Apply func(resources [][]byte, version string) error
}

func localTypes(types []LocalType) (map[string]LocalType, error) {
	locals := make(map[string]LocalType, len(types))
	for _, l := range types {
		if _, twice := locals[l.TypeURL]; twice || l.TypeURL == "" || l.Apply == nil {
			return nil, fmt.Errorf("xdsproxy: local type %q is given twice, or without a name or a function", l.TypeURL)
		}
		locals[l.TypeURL] = l
	}
	return locals, nil
}

// localRequests subscribe to all local types, and say which resources were applied: tables of names are large.
func (r *Relay) localRequests(v variant) []*frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	var frames []*frame
	for _, l := range r.config.Local {
		frames = append(frames, newStreamState(v).ask(&typeState{url: l.TypeURL, all: true, silently: true, held: r.applied[l.TypeURL]}, nil))
	}
	return frames
}

// holds books what was applied of a local type. Resources without a version of their own have to come again.
func (r *Relay) holds(applied response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.applied[applied.typeURL]
	if held == nil {
		held = map[string]string{}
		r.applied[applied.typeURL] = held
	}
	for _, name := range applied.removed {
		delete(held, name)
	}
	for _, one := range applied.resources {
		held[one.name] = one.version
		if one.version == "" {
			delete(held, one.name)
		}
	}
}

// applyLocal hands a response to who it is for, and gives the answer.
func (a *ascent) applyLocal(l LocalType, r response, f *frame) *frame {
	contents, err := contentsOf(a.proto, f)
	if err == nil && len(contents) > 0 {
		err = l.Apply(contents, r.version)
	}
	if err != nil {
		a.relay.log.Warn("the agent rejected a configuration of its own", "type", r.typeURL, "version", r.version, "reason", err)
	} else {
		a.relay.holds(r)
	}
	return reply(a.proto, r, r.version, nil, err)
}

// contentsOf are the values of a response's Anys.
func contentsOf(v variant, f *frame) ([][]byte, error) {
	bodies, err := bodiesOf(v, f)
	if err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	contents := make([][]byte, len(bodies))
	for i, b := range bodies {
		if b == nil {
			return nil, errors.New("a resource has no content")
		}
		contents[i] = b.GetValue()
	}
	return contents, nil
}

func bodiesOf(v variant, f *frame) ([]*anypb.Any, error) {
	data := f.data.Materialize()
	if v == sotw {
		var m discoveryv3.DiscoveryResponse
		err := proto.Unmarshal(data, &m)
		return m.GetResources(), err
	}
	var m discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	var bodies []*anypb.Any
	for _, r := range m.GetResources() {
		bodies = append(bodies, r.GetResource())
	}
	return bodies, nil
}
