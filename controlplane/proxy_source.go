package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
)

// proxySource implements xds.Source: it creates an xds.Proxy for each stream.
type proxySource struct {
	log             *slog.Logger
	refusals        *loglimit.Limiter // limits log lines about clients without an identity
	registrar       *registration.Registrar
	changes         *changeLog
	usage           *usageHistory
	acceptHTTP10    bool // all proxies accept HTTP/1.0
	onDemandDefault bool // Config.AutomaticScope
	// onDemandTimeout limits how long requests wait for on-demand resources.
	onDemandTimeout time.Duration
	revocations     *revocations
	readers         *documentReaders
}

// Connect accepts a proxy if its node is valid and matches its proved identity. It accepts another control plane if
// that control plane may read the documents.
func (s proxySource) Connect(ctx context.Context, node *corev3.Node, peer xds.Peer) (xds.Proxy, error) {
	if isDocumentReader(node) {
		reader, err := s.readers.connect(peer)
		if err != nil {
			return nil, s.refuseProxy(codes.PermissionDenied, peer, err)
		}
		return reader, nil
	}
	if _, err := translate.ParseProxy(node, ""); err != nil {
		return nil, s.refuseProxy(codes.InvalidArgument, peer, err)
	}
	p, err := translate.ParseProxy(node, peer.Identity)
	if err != nil { // the node is valid without the identity, so the identity contradicts the node
		return nil, s.refuseProxy(codes.PermissionDenied, peer, err)
	}
	p.Disconnected = ctx.Done()
	p.AcceptsHTTP10 = p.AcceptsHTTP10 || s.acceptHTTP10
	p.UseVHDS = peer.Delta && p.SupportsVHDS()
	connected := proxy{Proxy: p, changes: s.changes, withheld: &withheldSecretLog{logger: s.log}, revocations: s.revocations}
	p.OnDemand = (s.onDemandDefault && p.Scope != "all" || p.Scope == "automatic") && p.SupportsOnDemand()
	p.OnDemandTimeout = s.onDemandTimeout
	if p.AutoRegisterGroup != "" {
		if connected.registered, err = s.registerWorkload(p, peer); err != nil {
			return nil, s.refuseProxy(codes.FailedPrecondition, peer, err)
		}
		context.AfterFunc(ctx, connected.registered.Disconnect)
	}
	if p.OnDemand { // after the registration, which sets the labels
		connected.onDemand = newOnDemand(p, s.usageFor(p))
	}
	return connected, nil
}

// usageFor returns the usage history for p. It returns nil, and logs this, if p has not proved an identity.
func (s proxySource) usageFor(p *translate.Proxy) *usageHistory {
	if p.Authenticated {
		return s.usage
	}
	s.log.Info("the control plane does not store the workload's usage history, because the workload did not prove a service account: connect the workload to the port for xDS over TLS", "node", p.ID)
	return nil
}

// registerWorkload registers the workload of p as a member of its WorkloadGroup, and sets the labels and address of p
// to the registered ones.
func (s proxySource) registerWorkload(p *translate.Proxy, peer xds.Peer) (*registration.Registration, error) {
	if !p.Authenticated { // otherwise any client on the plaintext port could receive requests for the group
		return nil, fmt.Errorf("the workload at %s %w: members of a WorkloadGroup must prove their service account: "+
			"connect to the port for xDS over TLS, with a token or a certificate", p.Address, registration.ErrRefused)
	}
	// If the address is invalid, the result is the zero value, which the registrar refuses.
	from, _ := netip.ParseAddrPort(peer.Address)
	registered, err := s.registrar.Connect(registration.Workload{
		Group: p.AutoRegisterGroup, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Address: p.Address, Source: from.Addr(), Labels: p.Labels,
		Network: p.Network, Locality: p.Locality, HealthChecked: p.HealthChecked,
	})
	if err == nil {
		p.Labels, p.RegisteredAddress = registered.Labels, registered.Address
	}
	return registered, err
}

func (s proxySource) refuseProxy(code codes.Code, peer xds.Peer, err error) error {
	log, logged := s.log, true
	if peer.Identity == "" {
		var unlogged int
		unlogged, logged = s.refusals.Allow(time.Now(), refusalLogInterval)
		log = log.With("suppressedLines", unlogged)
	}
	if logged {
		log.Warn("refused a proxy", "address", peer.Address, "identity", peer.Identity, "reason", err)
	}
	return status.Error(code, err.Error())
}

// proxy generates the resources of one proxy.
type proxy struct {
	*translate.Proxy
	changes    *changeLog
	registered *registration.Registration // nil if the workload was not registered as a member of a WorkloadGroup
	onDemand   *onDemand                  // nil unless the proxy requests virtual hosts and clusters on demand
	withheld   *withheldSecretLog
	// revocations is separate from the snapshot, because a denial must take effect immediately.
	revocations *revocations
}

// Hooks implements xds.Proxy.
func (p proxy) Hooks() xds.Hooks {
	return xds.Hooks{
		AttributeNACK: p.attributeNACK, ResolveOnDemand: p.resolveOnDemand, StartReplacing: p.startReplacing, Resume: p.resume,
		ReconnectReason: p.reconnectReason, HandleHealthReport: p.handleHealthReport, IsValidName: translate.ValidName, DisableVHDS: p.DisableVHDS,
	}
}

// handleHealthReport passes an agent's health report to the registrar.
func (p proxy) handleHealthReport(healthy bool, reason string) {
	if p.registered != nil {
		p.registered.HandleHealthReport(healthy, reason)
	}
}

// reconnectReason returns an error if a user edited the workload's group, so that the workload's labels or address
// change. The proxy then reconnects and is registered with the new ones.
func (p proxy) reconnectReason() error {
	if p.registered != nil && p.registered.IsOutdated() {
		return fmt.Errorf("labels or member addresses of WorkloadGroup %s changed", p.AutoRegisterGroup)
	}
	return nil
}

// ComputePushScope implements xds.Proxy.
func (p proxy) ComputePushScope(state xds.State, change xds.Change) xds.PushScope {
	c, ok := change.(snapshot.Change)
	if !ok {
		c = snapshot.Change{Full: true}
	}
	scope := translate.AffectedResources(state.(*snapshot.Snapshot), p.Proxy, c)
	if p.onDemand != nil {
		scope = p.onDemand.filterScope(state.(*snapshot.Snapshot), scope)
	}
	return scope
}

// resume records the resources that a reconnecting proxy reports.
func (p proxy) resume(typeURL string, names []string) {
	if p.onDemand != nil {
		p.onDemand.resume(typeURL, names)
	}
}

// startReplacing makes Generate return clusters without endpoints in place of removed clusters, if the proxy requests
// clusters on demand.
func (p proxy) startReplacing(typeURL string, names []string) bool {
	return p.onDemand != nil && typeURL == xds.ClusterType && p.onDemand.startReplacing(names)
}

// resolveOnDemand resolves the names of virtual hosts for which HTTP requests of the workload wait.
func (p proxy) resolveOnDemand(state xds.State, names []string) (targets map[string]string, before xds.PushScope) {
	s, ok := state.(*snapshot.Snapshot)
	if p.onDemand == nil || !ok { // the proxy does not request resources on demand
		return nil, nil
	}
	return p.onDemand.resolve(s, names)
}

// Generate implements xds.Proxy. Only clusters, listeners and the agent's types support wildcards.
func (p proxy) Generate(state xds.State, typeURL string, wildcard bool, names []string) ([]*xds.Resource, error) {
	s, ok := state.(*snapshot.Snapshot)
	if !ok {
		return nil, fmt.Errorf("the state is a %T, not a snapshot", state)
	}
	if typeURL == xds.RevocationType {
		return selectResources(p.revocations.resources(), wildcard, names), nil
	}
	if p.Proxyless && typeURL != xds.NameTableType { // only the agent of a proxyless application uses the name table
		return translate.Proxyless(s, p.Proxy, typeURL, names)
	}
	if typeURL == xds.ListenerType || typeURL == xds.SecretType {
		p.withheld.logChanges(s, p.Proxy)
	}
	switch typeURL {
	case xds.ClusterType:
		if p.onDemand != nil {
			return p.onDemand.generateClusters(s, wildcard, names)
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
			return p.onDemand.generateHosts(s, names, nil)
		case p.onDemand != nil:
			return p.onDemand.generateNamedHosts(s, names)
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
		return selectResources([]*xds.Resource{own}, wildcard, names), nil
	case xds.NameTableType:
		table, err := translate.NameTable(s, p.Proxy)
		if err != nil {
			return nil, err
		}
		return selectResources([]*xds.Resource{table}, wildcard, names), nil
	}
	return nil, nil
}

func selectResources(all []*xds.Resource, wildcard bool, names []string) []*xds.Resource {
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
