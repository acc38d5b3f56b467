package xdsproxy

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// initialRequest returns the first request for a type on an upstream stream. It contains Envoy's subscription, and the
// versions of the resources that Envoy has.
func (s *streamState) initialRequest(t *typeState, node []byte) *wire.Message {
	if s.proto == wire.SotW {
		return wire.NewMessage(t.sotwRequest(node, s.hideVersions))
	}
	var b []byte
	if node != nil {
		b = wire.AppendBytes(b, wire.DeltaNode, node)
	}
	b = wire.AppendText(b, wire.DeltaType, t.url)
	// A first request without names subscribes to all resources. A request with names does so only if the name "*" is
	// among them.
	if t.all && (!t.isImplicit || len(t.names) > 0) {
		b = wire.AppendText(b, wire.DeltaSubscribe, wire.Wildcard)
	}
	for _, name := range sortedKeys(t.names) {
		b = wire.AppendText(b, wire.DeltaSubscribe, name)
	}
	known := t.knownVersions(s.hideVersions)
	for _, name := range sortedKeys(known) {
		entry := wire.AppendText(wire.AppendText(nil, 1, name), 2, known[name])
		b = wire.AppendBytes(b, wire.DeltaKnown, entry)
	}
	return wire.NewMessage(b)
}

// knownVersions returns the versions of the resources that Envoy has, by name. The version is empty if it is uncertain,
// or if hideVersions is set. The control plane then sends the resource again or reports its removal.
func (t *typeState) knownVersions(hideVersions bool) map[string]string {
	if !hideVersions && len(t.pending) == 0 {
		return t.heldVersions
	}
	known := make(map[string]string, len(t.heldVersions))
	for name, version := range t.heldVersions {
		if !hideVersions {
			known[name] = version
		} else {
			known[name] = ""
		}
	}
	for _, p := range t.pending {
		epoch, _ := splitNonce(p.nonce)
		for _, one := range p.Resources {
			// Epoch 0: the response is from the last accepted configuration, which Envoy has accepted before.
			if epoch == 0 && !hideVersions {
				known[one.Name] = one.Version
			} else {
				known[one.Name] = ""
			}
		}
	}
	return known
}

// sotwRequest returns a SotW request with Envoy's subscription and last accepted version, without a nonce.
func (t *typeState) sotwRequest(node []byte, hideVersions bool) []byte {
	var b []byte
	if t.version != "" && !hideVersions {
		b = wire.AppendText(b, wire.SotWVersion, t.version)
	}
	if node != nil {
		b = wire.AppendBytes(b, wire.SotWNode, node)
	}
	for _, name := range sortedKeys(t.names) {
		b = wire.AppendText(b, wire.SotWNames, name)
	}
	return wire.AppendText(b, wire.SotWType, t.url)
}

// subscriptionRequest returns a delta request with the subscription changes of r, but without the ACK or NACK of r.
func subscriptionRequest(r wire.Request) *wire.Message {
	b := wire.AppendText(nil, wire.DeltaType, r.TypeURL)
	for _, name := range r.Subscribe {
		b = wire.AppendText(b, wire.DeltaSubscribe, name)
	}
	for _, name := range r.Unsubscribe {
		b = wire.AppendText(b, wire.DeltaUnsubscribe, name)
	}
	return wire.NewMessage(b)
}

// buildReply returns the relay's own reply to a response: an ACK, or a NACK if reason is not nil. version and names are
// used only for SotW.
func buildReply(v wire.Variant, r wire.Response, version string, names []string, reason error) *wire.Message {
	var b []byte
	if v == wire.Delta {
		b = wire.AppendText(wire.AppendText(b, wire.DeltaType, r.TypeURL), wire.DeltaNonce, r.Nonce)
		return wire.NewMessage(wire.AppendError(b, wire.DeltaError, reason))
	}
	b = wire.AppendText(b, wire.SotWVersion, version)
	for _, name := range names {
		b = wire.AppendText(b, wire.SotWNames, name)
	}
	b = wire.AppendText(wire.AppendText(b, wire.SotWType, r.TypeURL), wire.SotWNonce, r.Nonce)
	return wire.NewMessage(wire.AppendError(b, wire.SotWError, reason))
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
