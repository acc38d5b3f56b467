package xds

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"
)

// ClientStatus is the state of one connected client.
type ClientStatus struct {
	// ID consists of the node's id and a number of the stream.
	ID       string `json:"id"`
	Node     string `json:"node"`
	Address  string `json:"address"`
	Identity string `json:"identity,omitempty"`
	// Protocol is "delta" or "sotw".
	Protocol  string    `json:"protocol"`
	Connected time.Time `json:"connected"`
	// Version is the name of the newest state of the mesh that the server has processed for the client.
	Version string `json:"version"`
	// InSync is true if the client has accepted all responses and no change is pending.
	InSync bool `json:"inSync"`
	// Pushing is true if a change is pending for this client, or is being sent.
	Pushing bool `json:"pushing"`
	// Degraded is the reason that the agent reported last (see DegradationType), or "" if the client serves as its
	// configuration specifies.
	Degraded string       `json:"degraded,omitempty"`
	Types    []TypeStatus `json:"types"`
}

// TypeStatus is the state of one type for one client.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// Wildcard is true if the client subscribes to all resources of the type. Names lists the names to which it
	// subscribes, sorted.
	Wildcard bool     `json:"wildcard"`
	Names    []string `json:"names,omitempty"`
	// NamesOmitted is the number of names that are not listed because of maxStatusNames.
	NamesOmitted int `json:"namesOmitted,omitempty"`
	// Resources is the number of resources that the client has.
	Resources    int       `json:"resources"`
	SentVersion  string    `json:"sentVersion,omitempty"`
	SentNonce    string    `json:"sentNonce,omitempty"`
	SentAt       time.Time `json:"sentAt,omitzero"`
	AckedVersion string    `json:"ackedVersion,omitempty"`
	AckedNonce   string    `json:"ackedNonce,omitempty"`
	AckedAt      time.Time `json:"ackedAt,omitzero"`
	// Unanswered is the number of responses without an ACK or NACK.
	Unanswered int `json:"unanswered,omitempty"`
	// Removing is the number of resources whose removal is scheduled.
	Removing int `json:"removing,omitempty"`
	// Rejected is the last NACK; nil if the client has since accepted the rejected resources.
	Rejected *Rejection `json:"rejected,omitempty"`
	// Error is the error of the last generation.
	Error string `json:"error,omitempty"`
}

// Rejection is one NACK.
type Rejection struct {
	At      time.Time `json:"at"`
	Reason  string    `json:"reason"`
	Nonce   string    `json:"nonce"`
	Version string    `json:"version"`
	// Resources lists the resources of the rejected response that the reason names. If the reason names none, Resources
	// lists all of them.
	Resources []string `json:"resources"`
	// From lists the documents from which the resources were generated. The most likely cause is first.
	From []SuspectDocument `json:"from,omitempty"`

	named bool // the reason contains the name of one of the resources
}

// maxStatusNames limits the total size in bytes of the names of one type in a client's status. It is sufficient for the
// names of 10,000 services.
const maxStatusNames = 2 << 20

// Clients returns the connected clients, ordered by ID.
func (s *Server) Clients() []ClientStatus {
	clients := []ClientStatus{}
	return slices.AppendSeq(clients, s.EachClient())
}

// EachClient returns an iterator over the connected clients, ordered by ID.
func (s *Server) EachClient() iter.Seq[ClientStatus] {
	connections := s.snapshotConnections()
	slices.SortFunc(connections, func(a, b *connection) int { return cmp.Compare(a.id, b.id) })
	return func(yield func(ClientStatus) bool) {
		for _, c := range connections {
			if !yield(c.status()) {
				return
			}
		}
	}
}

// Proxies returns the Proxy of each connected client, by client ID.
func (s *Server) Proxies() map[string]Proxy {
	proxies := map[string]Proxy{}
	for _, c := range s.snapshotConnections() {
		proxies[c.id] = c.proxy
	}
	return proxies
}

func (s *Server) snapshotConnections() []*connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*connection, 0, len(s.connections))
	for _, c := range s.connections {
		all = append(all, c)
	}
	return all
}

func (c *connection) status() ClientStatus {
	c.pendingMu.Lock()
	waiting := c.pending != nil
	c.pendingMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	st := ClientStatus{
		ID: c.id, Node: c.node, Address: c.peer.Address, Identity: c.peer.Identity, Protocol: c.stream.protocol(),
		Connected: c.connected, Version: c.version, Pushing: waiting || c.transitioning || len(c.dirty) > 0, Degraded: c.degraded, Types: []TypeStatus{},
	}
	st.InSync = !st.Pushing
	for _, sub := range c.subs {
		t := sub.status()
		st.InSync = st.InSync && t.Unanswered == 0 && t.Removing == 0 && t.Rejected == nil && t.Error == ""
		st.Types = append(st.Types, t)
	}
	slices.SortFunc(st.Types, func(a, b TypeStatus) int {
		return cmp.Or(cmp.Compare(typeIndex(a.TypeURL), typeIndex(b.TypeURL)), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	return st
}

// typeIndex returns the index of the type in Order, or len(Order) for other types.
func typeIndex(typeURL string) int {
	if i := slices.Index(Order, typeURL); i >= 0 {
		return i
	}
	return len(Order)
}

func (s *subscription) status() TypeStatus {
	names := s.names.sorted()
	listed, size := 0, 0
	for ; listed < len(names) && size <= maxStatusNames; listed++ {
		size += len(names[listed])
	}
	st := TypeStatus{
		TypeURL: s.typeURL, Wildcard: s.wildcard, Names: slices.Clone(names[:listed]), NamesOmitted: len(names) - listed, Rejected: s.currentRejection(),
		Removing: len(s.removing), Unanswered: len(s.outstanding),
	}
	for _, version := range s.known.all {
		if version != unknownVersion {
			st.Resources++
		}
	}
	if s.last != nil {
		st.SentVersion, st.SentNonce, st.SentAt = s.last.version, s.last.nonce, s.last.at
	}
	if s.acked != nil {
		st.AckedVersion, st.AckedNonce, st.AckedAt = s.acked.version, s.acked.nonce, s.ackedAt
	}
	if s.generateErr != nil {
		st.Error = s.generateErr.Error()
	}
	return st
}

// currentRejection returns the newest rejection that still applies, or nil. A rejection ends when the client has
// accepted all resources that its reason names. If the reason names none, the rejection ends when the client accepts
// any resource.
func (s *subscription) currentRejection() *Rejection {
	var newest *Rejection
	var names []string
	for name, r := range s.refused {
		if r.by.named && !r.suspect {
			// The resource was in the same response as the invalid resource, but the reason does not name it. The
			// server sends it again with the next change.
			continue
		}
		if newest == nil || r.by.At.After(newest.At) {
			newest, names = r.by, nil
		}
		if r.by == newest {
			names = append(names, name)
		}
	}
	if newest == nil {
		if s.rejection != nil && s.rejection.At.After(s.ackedAt) && (len(s.rejection.Resources) == 0 || slices.ContainsFunc(s.rejection.Resources, s.known.has)) {
			return s.rejection
		}
		return nil
	}
	left := *newest
	slices.Sort(names)
	left.Resources = names
	return &left
}

// Resources generates the resources that a connected client should have now, by type URL. It returns only resources to
// which the client subscribes. id is a ClientStatus.ID, or a node's id, which selects the node's newest stream.
// Resources waits while the stream is busy.
func (s *Server) Resources(ctx context.Context, id string) (map[string][]*Resource, error) {
	var found *connection
	for _, c := range s.snapshotConnections() {
		if c.id == id || (c.node == id && (found == nil || c.connected.After(found.connected))) {
			found = c
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no client %q is connected", id)
	}
	resources := map[string][]*Resource{}
	var err error
	doErr := found.runInStream(ctx, func() {
		for _, typeURL := range Order {
			sub, ok := found.subs[typeURL]
			if !ok || err != nil {
				continue
			}
			wildcard, names := sub.wildcard, sub.names.sorted()
			if routes := found.subs[RouteType]; typeURL == VirtualHostType && routes != nil {
				// Select the virtual hosts of the client's route configurations, because the client does not subscribe
				// to virtual hosts by name.
				wildcard, names = true, routes.names.sorted()
			}
			resources[typeURL], err = found.generate(sub, wildcard, names)
		}
	})
	return resources, cmp.Or(doErr, err)
}
