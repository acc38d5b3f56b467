package xdsproxy

import (
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// OfferHeader is the response header in which a control plane lists the type URLs of the resources that it offers to
// agents.
const OfferHeader = "pilotfish-offers"

// LocalType is a resource type that the agent itself uses, for example the DNS name table. Once per upstream stream,
// the relay subscribes to all resources of the type. It sends the ACKs and NACKs itself. It subscribes after Envoy's
// first request for listeners, because control planes do not know the proxy before that request. The subscription
// contains the versions that the agent has already applied.
type LocalType struct {
	TypeURL string
	// Offered restricts the subscription to control planes that list the type in OfferHeader. Some control planes close
	// a stream that requests an unknown type.
	Offered bool
	// Apply is called for each response that contains resources, with their contents (the value of each Any). If it
	// returns an error, the relay sends a NACK with the error as the reason. Calls are sequential. Apply must not
	// block.
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

// buildLocalRequests returns the initial requests of the local types for which selects returns true. A request contains
// the versions that the agent has applied, so that the control plane does not send a large name table again.
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

// recordApplied records the resource versions of an applied response. It does not record a resource without a version.
// The control plane therefore sends such a resource again on the next stream.
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

// applyLocal applies a response of the local type l and returns the relay's ACK or NACK.
func (a *upstreamStream) applyLocal(l LocalType, r wire.Response, f *wire.Message) *wire.Message {
	contents, err := resourceContents(a.proto, f)
	if err == nil && len(contents) > 0 {
		err = l.Apply(contents, r.Version)
	}
	if err != nil {
		a.relay.log.Warn("the agent rejected a response that it requested for itself, not for Envoy", "type", r.TypeURL, "version", r.Version, "reason", err)
	} else {
		a.relay.recordApplied(r)
	}
	return buildReply(a.proto, r, r.Version, nil, err)
}

// resourceContents returns the value of each resource's Any. It fails if a resource has no Any.
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

// resourceBodies returns the Any of each resource in a response.
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
