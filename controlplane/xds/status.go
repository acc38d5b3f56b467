package xds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// ClientStatus is what is known of one connected client.
type ClientStatus struct {
	// ID is the node's id and the number of its stream.
	ID       string `json:"id"`
	Node     string `json:"node"`
	Address  string `json:"address"`
	Identity string `json:"identity,omitempty"`
	// Protocol is "delta" or "sotw".
	Protocol  string    `json:"protocol"`
	Connected time.Time `json:"connected"`
	// Version is the state of the mesh that the client was brought to last.
	Version string `json:"version"`
	// InSync says that the client has accepted all that it was sent, and that nothing waits to be sent.
	InSync bool `json:"inSync"`
	// Pushing says that a change waits for this client, or is being sent to it.
	Pushing bool         `json:"pushing"`
	Types   []TypeStatus `json:"types"`
}

// TypeStatus is the state of one type on one client.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// Wildcard: the client wants all that there is for it; Names are those it asks for by name, sorted.
	Wildcard bool     `json:"wildcard"`
	Names    []string `json:"names,omitempty"`
	// Resources counts what the client has.
	Resources    int       `json:"resources"`
	SentVersion  string    `json:"sentVersion,omitempty"`
	SentNonce    string    `json:"sentNonce,omitempty"`
	SentAt       time.Time `json:"sentAt,omitzero"`
	AckedVersion string    `json:"ackedVersion,omitempty"`
	AckedNonce   string    `json:"ackedNonce,omitempty"`
	AckedAt      time.Time `json:"ackedAt,omitzero"`
	// Unanswered counts the responses that the client has neither accepted nor rejected yet.
	Unanswered int `json:"unanswered,omitempty"`
	// Removing counts the resources that will be removed once the client is quiet after its reconnect.
	Removing int `json:"removing,omitempty"`
	// Rejected is the last rejection of what the client has not accepted since.
	Rejected *Rejection `json:"rejected,omitempty"`
	// Error says why the resources could not be generated.
	Error string `json:"error,omitempty"`
}

// Rejection is one NACK.
type Rejection struct {
	At      time.Time `json:"at"`
	Reason  string    `json:"reason"`
	Nonce   string    `json:"nonce"`
	Version string    `json:"version"`
	// Resources are those of the rejected response that the reason names, or all if it names none.
	Resources []string `json:"resources"`
	// From is what the resources were made of, the likeliest cause first.
	From []Blamed `json:"from,omitempty"`

	named bool // the reason names one of them
}

// Clients gives the connected clients, ordered by id.
func (s *Server) Clients() []ClientStatus {
	clients := []ClientStatus{}
	for _, c := range s.snapshotConnections() {
		clients = append(clients, c.status())
	}
	slices.SortFunc(clients, func(a, b ClientStatus) int { return cmp.Compare(a.ID, b.ID) })
	return clients
}

// Proxies gives what was made of the connected clients' nodes, by the clients' IDs.
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
		ID: c.id, Node: c.node, Address: c.peer.Address, Identity: c.peer.Identity, Protocol: c.wire.protocol(),
		Connected: c.connected, Version: c.version, Pushing: waiting || c.taking || len(c.dirty) > 0, Types: []TypeStatus{},
	}
	st.InSync = !st.Pushing
	for _, sub := range c.subs {
		t := sub.status()
		st.InSync = st.InSync && t.Unanswered == 0 && t.Removing == 0 && t.Rejected == nil && t.Error == ""
		st.Types = append(st.Types, t)
	}
	slices.SortFunc(st.Types, func(a, b TypeStatus) int {
		return cmp.Or(cmp.Compare(rank(a.TypeURL), rank(b.TypeURL)), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	return st
}

// rank is a type's place in the order of sending.
func rank(typeURL string) int {
	if i := slices.Index(Order, typeURL); i >= 0 {
		return i
	}
	return len(Order)
}

func (s *subscription) status() TypeStatus {
	st := TypeStatus{
		TypeURL: s.typeURL, Wildcard: s.wildcard, Names: slices.Clone(s.names.sorted()), Rejected: s.rejected(),
		Removing: len(s.removing), Unanswered: len(s.outstanding),
	}
	for _, version := range s.known.all {
		if version != unsure {
			st.Resources++
		}
	}
	if s.last != nil {
		st.SentVersion, st.SentNonce, st.SentAt = s.last.version, s.last.nonce, s.last.at
	}
	if s.acked != nil {
		st.AckedVersion, st.AckedNonce, st.AckedAt = s.acked.version, s.acked.nonce, s.ackedAt
	}
	if s.failed != nil {
		st.Error = s.failed.Error()
	}
	return st
}

// rejected is the newest rejection that is not overcome: one of the resources that it blames was not accepted since, or,
// if it blames none, nothing was.
func (s *subscription) rejected() *Rejection {
	var newest *Rejection
	var names []string
	for name, r := range s.refused {
		if r.by.named && !r.suspect {
			continue // it only came with a bad one; it goes again with the next change
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

// Resources generates what a connected client should have now, by type URL in the order of sending; of what it asks
// for by name, only that. The id is a ClientStatus's ID, or a node's id. It waits while the client's stream is busy.
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
	doErr := found.do(ctx, func() {
		for _, typeURL := range Order {
			sub, ok := found.subs[typeURL]
			if !ok || err != nil {
				continue
			}
			wildcard, names := sub.wildcard, sub.names.sorted()
			if routes := found.subs[RouteType]; typeURL == VirtualHostType && routes != nil {
				wildcard, names = true, routes.names.sorted() // they follow the routes, and nobody asks for them by name
			}
			resources[typeURL], err = found.generate(sub, wildcard, names)
		}
	})
	return resources, cmp.Or(doErr, err)
}
