package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// source makes the resources of the proxies that connect.
type source struct {
	log       *slog.Logger
	registrar *registration.Registrar
	journal   *journal
	learned   *learned
	scoped    bool // by default
	// onDemandTimeout bounds how long requests wait for what is asked for as they need it.
	onDemandTimeout time.Duration
	told            func() // there is something to say of documents
}

// Connect accepts a proxy whose node is understood and fits the identity that it proved.
func (s source) Connect(ctx context.Context, node *corev3.Node, peer xds.Peer) (xds.Proxy, error) {
	if _, err := translate.ParseProxy(node, ""); err != nil {
		return nil, s.refuse(codes.InvalidArgument, peer, err)
	}
	p, err := translate.ParseProxy(node, peer.Identity)
	if err != nil { // what was fine without the identity does not fit it
		return nil, s.refuse(codes.PermissionDenied, peer, err)
	}
	p.Ended = ctx.Done()
	p.HostsApart = peer.Delta && p.TakesHostsApart()
	connected := proxy{Proxy: p, journal: s.journal}
	p.OnDemand = (s.scoped && p.Scope != "all" || p.Scope == "automatic") && p.TakesOnDemand()
	p.OnDemandTimeout = s.onDemandTimeout
	if p.AutoRegisterGroup != "" {
		if connected.registered, err = s.register(p); err != nil {
			return nil, s.refuse(codes.FailedPrecondition, peer, err)
		}
		context.AfterFunc(ctx, connected.registered.Disconnect)
	}
	if !p.Proxyless {
		connected.trials = newTrials(p, s.journal, s.told, s.log)
	}
	if p.OnDemand { // by the labels that it has now
		connected.onDemand = newOnDemand(p, s.learnedBy(p))
	}
	return connected, nil
}

// learnedBy is where it is kept what a proxy's workload uses.
func (s source) learnedBy(p *translate.Proxy) *learned {
	if p.Proven {
		return s.learned
	}
	s.log.Info("what the workload uses is not kept for its next start: it proves no service account; connect it to the port for xDS over TLS", "node", p.ID)
	return nil
}

// register makes a workload that connects a member of its group. What the group's members have in common is the
// workload's own from then on.
func (s source) register(p *translate.Proxy) (*registration.Registration, error) {
	if !p.Proven { // or anyone who reaches the plaintext port would get the calls of others
		return nil, fmt.Errorf("the workload at %s %w: it proves no service account, and members of a WorkloadGroup have to: "+
			"connect to the port for xDS over TLS, with a token or a certificate", p.Address, registration.ErrRefused)
	}
	registered, err := s.registrar.Connect(registration.Workload{
		Group: p.AutoRegisterGroup, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Address: p.Address, Labels: p.Labels,
		Network: p.Network, Locality: p.Locality, HealthChecked: p.HealthChecked,
	})
	if err == nil {
		p.Labels = registered.Labels
	}
	return registered, err
}

func (s source) refuse(code codes.Code, peer xds.Peer, err error) error {
	s.log.Warn("a proxy is refused", "address", peer.Address, "identity", peer.Identity, "reason", err)
	return status.Error(code, err.Error())
}

// proxy makes the resources of one proxy.
type proxy struct {
	*translate.Proxy
	journal    *journal
	registered *registration.Registration // nil unless it is of a WorkloadGroup
	onDemand   *onDemand                  // nil unless it asks for virtual hosts and clusters as it needs them
	trials     *trials                    // nil unless it is an Envoy
}

// Report takes what an agent reports of its workload's health.
func (p proxy) Report(healthy bool, reason string) {
	if p.registered != nil {
		p.registered.Report(healthy, reason)
	}
}

// Leave has a workload connect again whose labels are others now, by which it is selected.
func (p proxy) Leave() error {
	if p.registered != nil && p.registered.Relabelled() {
		return fmt.Errorf("the labels of WorkloadGroup %s have changed", p.AutoRegisterGroup)
	}
	return nil
}

// Affected says what a change touches for this proxy.
func (p proxy) Affected(state xds.State, change xds.Change) xds.Touches {
	c, ok := change.(snapshot.Change)
	if !ok {
		c = snapshot.Change{Full: true}
	}
	touches := translate.Affected(state.(*snapshot.Snapshot), p.Proxy, c)
	if p.onDemand != nil {
		touches = p.onDemand.affected(state.(*snapshot.Snapshot), touches)
	}
	return touches
}

// Resume takes up what a client that comes back has.
func (p proxy) Resume(typeURL string, names []string) {
	if p.onDemand != nil {
		p.onDemand.resume(typeURL, names)
	}
}

// Replaces has a proxy that asks for clusters keep something in the places of those that go.
func (p proxy) Replaces(typeURL string, names []string) bool {
	return p.onDemand != nil && typeURL == xds.ClusterType && p.onDemand.replaces(names)
}

// Ask is for virtual hosts that requests of the client's workload need.
func (p proxy) Ask(state xds.State, names []string) (leads map[string]string, before xds.Touches) {
	s, ok := state.(*snapshot.Snapshot)
	if p.onDemand == nil || !ok { // nobody told it to ask
		return nil, nil
	}
	return p.onDemand.ask(s, names)
}

// Generate gives the resources of one type. Clusters and listeners are sent to everyone whole; the others by name only.
func (p proxy) Generate(state xds.State, typeURL string, wildcard bool, names []string) ([]*xds.Resource, error) {
	s, ok := state.(*snapshot.Snapshot)
	if !ok {
		return nil, fmt.Errorf("the state is a %T, and not a snapshot", state)
	}
	if p.Proxyless && typeURL != xds.NameTableType { // the names are for its agent
		return translate.Proxyless(s, p.Proxy, typeURL, names)
	}
	switch typeURL {
	case xds.ClusterType:
		if p.onDemand != nil {
			return p.onDemand.clusters(s, wildcard, names)
		}
		if wildcard {
			return translate.Clusters(s, p.Proxy)
		}
		return translate.NamedClusters(s, p.Proxy, names)
	case xds.ListenerType:
		if !wildcard {
			return translate.NamedListeners(s, p.Proxy, names)
		}
		return translate.Listeners(s, p.Proxy)
	case xds.EndpointType:
		return translate.Endpoints(s, p.Proxy, names)
	case xds.RouteType:
		return translate.Routes(s, p.Proxy, names)
	case xds.VirtualHostType:
		switch {
		case p.onDemand != nil && wildcard:
			return p.onDemand.hosts(s, names, nil)
		case p.onDemand != nil:
			return p.onDemand.namedHosts(s, names)
		case wildcard:
			return translate.VirtualHosts(s, p.Proxy, names)
		}
		return translate.NamedVirtualHosts(s, p.Proxy, names)
	case xds.SecretType:
		return translate.Secrets(s, p.Proxy, names)
	case xds.ExtensionType:
		return translate.Extensions(s, p.Proxy, names)
	case xds.ProxyConfigType:
		own, err := translate.ProxyConfig(s)
		if err != nil {
			return nil, err
		}
		return pick([]*xds.Resource{own}, wildcard, names), nil
	case xds.NameTableType:
		table, err := translate.NameTable(s, p.Proxy)
		if err != nil {
			return nil, err
		}
		return pick([]*xds.Resource{table}, wildcard, names), nil
	}
	return nil, nil
}

func pick(all []*xds.Resource, wildcard bool, names []string) []*xds.Resource {
	if wildcard {
		return all
	}
	wanted := make(map[string]bool, len(names))
	for _, n := range names {
		wanted[n] = true
	}
	var picked []*xds.Resource
	for _, r := range all {
		if wanted[r.Name] {
			picked = append(picked, r)
		}
	}
	return picked
}
