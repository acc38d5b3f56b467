package xdsproxy

import (
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// OfferHeader is the response header in which a control plane lists the type URLs that only agents subscribe to.
const OfferHeader = "pilotfish-offers"

// LocalType is a resource type for the agent, not for Envoy, for example the DNS name table. The relay subscribes to
// all its resources once per upstream stream, and answers the responses itself. It subscribes after Envoy's first
// request for listeners, because control planes do not know the proxy before. The request contains the versions that
// were applied earlier.
type LocalType struct {
	TypeURL string
	// Offered subscribes only if the control plane lists the type in OfferHeader. Other control planes may not know the
	// type, and some end a stream that requests an unknown one.
	Offered bool
	// Apply receives the contents of the resources of one response (the values of the Anys). An error rejects the
	// response and is sent to the control plane as the reason. Calls are sequential. Apply must not block.
	Apply func(resources [][]byte, version string) error
}

func indexLocalTypes(types []LocalType) (map[string]LocalType, error) {
	locals := make(map[string]LocalType, len(types))
	for _, l := range types {
		if _, isDuplicate := locals[l.TypeURL]; isDuplicate || l.TypeURL == "" || l.Apply == nil {
			return nil, fmt.Errorf("xdsproxy: local type %q is configured twice, or has no type URL or no Apply function", l.TypeURL)
		}
		locals[l.TypeURL] = l
	}
	return locals, nil
}

// buildLocalRequests returns the initial requests of the selected local types. They contain the applied versions,
// because name tables are large.
func (r *Relay) buildLocalRequests(v wire.Variant, selects func(LocalType) bool) []*wire.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var messages []*wire.Message
	for _, l := range r.config.Local {
		if !selects(l) {
			continue
		}
		messages = append(messages, newStreamState(v).initialRequest(&typeState{url: l.TypeURL, all: true, isImplicit: true, heldVersions: r.appliedVersions[l.TypeURL]}, nil))
	}
	return messages
}

// recordApplied records the applied versions of a local type. Resources without a version are sent again on the next
// stream.
func (r *Relay) recordApplied(applied wire.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	versions := r.appliedVersions[applied.TypeURL]
	if versions == nil {
		versions = map[string]string{}
		r.appliedVersions[applied.TypeURL] = versions
	}
	for _, name := range applied.Removed {
		delete(versions, name)
	}
	for _, one := range applied.Resources {
		versions[one.Name] = one.Version
		if one.Version == "" {
			delete(versions, one.Name)
		}
	}
}

// applyLocal applies a response of a local type and returns the ACK or NACK.
func (a *upstreamStream) applyLocal(l LocalType, r wire.Response, f *wire.Message) *wire.Message {
	contents, err := resourceContents(a.proto, f)
	if err == nil && len(contents) > 0 {
		err = l.Apply(contents, r.Version)
	}
	if err != nil {
		a.relay.log.Warn("the agent rejected configuration for itself", "type", r.TypeURL, "version", r.Version, "reason", err)
	} else {
		a.relay.recordApplied(r)
	}
	return buildReply(a.proto, r, r.Version, nil, err)
}

// resourceContents returns the values of a response's Anys.
func resourceContents(v wire.Variant, f *wire.Message) ([][]byte, error) {
	bodies, err := resourceBodies(v, f)
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

func resourceBodies(v wire.Variant, f *wire.Message) ([]*anypb.Any, error) {
	data := f.Data.Materialize()
	if v == wire.SotW {
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
