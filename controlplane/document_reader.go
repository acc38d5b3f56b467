package controlplane

import (
	"fmt"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/mcp"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// documentReaders serves the documents of Istio's kinds to other control planes. It never serves Kubernetes Services
// and Secrets. It does not serve documents that this control plane receives from other control planes either: otherwise
// two control planes that read from each other would preserve documents that were removed.
type documentReaders struct {
	allowed map[string]bool // SPIFFE IDs
	store   config.Store
	types   []string

	mu      sync.Mutex
	encoded map[config.Kind]map[*config.Resource]*xds.Resource
}

// newDocumentReaders returns a documentReaders for the documents in store. allowed are the identities of the control
// planes that may read: SPIFFE IDs, or accounts NAMESPACE/NAME of the trust domain.
func newDocumentReaders(allowed []string, trustDomain string, store config.Store) (*documentReaders, error) {
	r := &documentReaders{allowed: map[string]bool{}, store: store, types: mcp.TypeURLs(), encoded: map[config.Kind]map[*config.Resource]*xds.Resource{}}
	for _, text := range allowed {
		id, err := parseReader(text, trustDomain)
		if err != nil {
			return nil, fmt.Errorf("--document-readers: %w: use NAMESPACE/ACCOUNT or a SPIFFE ID", err)
		}
		r.allowed[id.SPIFFEID()] = true
	}
	return r, nil
}

func parseReader(text, trustDomain string) (ca.Identity, error) {
	if strings.HasPrefix(text, "spiffe://") {
		return ca.ParseSPIFFEID(text)
	}
	namespace, account, ok := strings.Cut(text, "/")
	if !ok {
		return ca.Identity{}, fmt.Errorf("%q has no slash between namespace and account", text)
	}
	id := ca.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account}
	return id, id.Validate()
}

// isDocumentReader reports whether the client with this node requests documents instead of a proxy's configuration.
func isDocumentReader(node *corev3.Node) bool {
	return node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == mcp.Generator
}

// connect returns the xds.Proxy that serves documents to peer. It fails if the peer's identity is not allowed: an
// identity that may only receive the configuration of its proxy must not read the documents of the mesh.
func (r *documentReaders) connect(peer xds.Peer) (xds.Proxy, error) {
	if peer.Identity == "" {
		return nil, fmt.Errorf("a client without an identity cannot read the documents of the mesh: connect to the port for xDS over TLS, with a token or a certificate")
	}
	if !r.allowed[peer.Identity] {
		return nil, fmt.Errorf("%s may not read the documents of the mesh: add the identity to --document-readers of this control plane", peer.Identity)
	}
	return documentReader{r}, nil
}

// encode returns all documents of the kind as resources. It encodes only documents that have changed since its last
// call for the kind.
func (r *documentReaders) encode(kind config.Kind) ([]*xds.Resource, error) {
	documents := r.store.List(kind)
	r.mu.Lock()
	defer r.mu.Unlock()
	previous, current := r.encoded[kind], make(map[*config.Resource]*xds.Resource, len(documents))
	list := make([]*xds.Resource, 0, len(documents))
	for _, document := range documents {
		encoded, ok := previous[document]
		if !ok {
			message, err := mcp.Encode(document)
			if err != nil {
				return nil, err
			}
			if encoded, err = xds.NewResource(mcp.ResourceName(document.Key), message); err != nil {
				return nil, err
			}
		}
		current[document] = encoded
		list = append(list, encoded)
	}
	r.encoded[kind] = current
	return list, nil
}

// documentReader implements xds.Proxy for the stream of a control plane that reads documents.
type documentReader struct{ *documentReaders }

// Hooks implements xds.Proxy.
func (r documentReader) Hooks() xds.Hooks {
	return xds.Hooks{Types: r.types, AttributeNACK: r.attributeNACK}
}

// ComputePushScope implements xds.Proxy.
func (r documentReader) ComputePushScope(_ xds.State, change xds.Change) xds.PushScope {
	c, ok := change.(snapshot.Change)
	scope := xds.PushScope{}
	if !ok || c.Full {
		scope.AddAll(r.types...)
		return scope
	}
	changed := map[config.Kind]bool{}
	for key := range c.Keys {
		changed[key.Kind] = true
	}
	for _, typeURL := range r.types {
		if kind, _, _ := mcp.ParseTypeURL(typeURL); changed[kind] {
			scope.AddAll(typeURL)
		}
	}
	return scope
}

// Generate implements xds.Proxy.
func (r documentReader) Generate(_ xds.State, typeURL string, wildcard bool, names []string) ([]*xds.Resource, error) {
	kind, _, ok := mcp.ParseTypeURL(typeURL)
	if !ok {
		return nil, nil
	}
	all, err := r.encode(kind)
	if err != nil {
		return nil, err
	}
	return selectResources(all, wildcard, names), nil
}

// attributeNACK returns the documents called names, which a control plane rejected. It returns only the first ten.
func (r documentReader) attributeNACK(_ xds.State, typeURL string, names []string, _ string, _ time.Time) []xds.SuspectDocument {
	const limit = 10
	kind, _, _ := mcp.ParseTypeURL(typeURL)
	var suspects []xds.SuspectDocument
	for _, name := range names[:min(len(names), limit)] {
		key := config.Key{Kind: kind}
		key.Namespace, key.Name, _ = strings.Cut(name, "/")
		if document := r.store.Get(key); document != nil {
			suspects = append(suspects, xds.SuspectDocument{Document: key.String(), Position: document.Origin.String(), Evidence: "a control plane that reads the documents rejected it"})
		}
	}
	return suspects
}
