package translate

import (
	"slices"
	"sort"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Endpoints are the load assignments of the named clusters; names that lead nowhere are left out. No names at all: those
// of every cluster that gets its endpoints by EDS.
func Endpoints(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	out, err := v.serviceAssignments(names)
	if err != nil || !p.SelfDiscovery || !slices.Contains(names, localCluster) {
		return out, err
	}
	own, err := v.ownWorkload()
	return append(slices.Clone(out), own), err
}

// assignments finds the clusters of the names.
func assignments(s *snapshot.Snapshot, p *Proxy, names []string) []outbound {
	var out []outbound
	if len(names) == 0 {
		for _, c := range outboundClusters(s, p) {
			if c.svc.Resolution == registry.Static {
				out = append(out, c)
			}
		}
		return out
	}
	for _, name := range names {
		if c, ok := findOutbound(s, p, name); ok && c.svc.Resolution == registry.Static {
			out = append(out, c)
		}
	}
	return out
}

// assignmentKey is all that a load assignment depends on.
type assignmentKey struct {
	svc       *registry.Service
	port      uint32
	subset    string
	rule      *snapshot.DestinationRule // nil without a subset: then no rule matters
	instances *snapshot.Instances
	// near is where the caller is, and mesh what is said for all, where that matters.
	near string
	mesh *meshconfig.MeshConfig
}

func (c outbound) endpointsResource(s *snapshot.Snapshot) (*xds.Resource, error) {
	instances := s.Instances(c.svc)
	key := assignmentKey{svc: c.svc, port: c.port, subset: c.subset, instances: instances}
	if c.subset != "" || c.near != "" {
		key.rule = c.rule
	}
	if c.near != "" {
		key.near, key.mesh = c.near, c.mesh
	}
	return s.Cache.Get(key, func() (*xds.Resource, error) {
		return xds.NewResource(c.name(), c.assignment(instances))
	})
}

// assignment is the cluster's endpoints, as the caller's place orders them.
func (c outbound) assignment(instances *snapshot.Instances) *endpointv3.ClusterLoadAssignment {
	eps := c.endpoints(instances)
	out := loadAssignment(c.name(), eps)
	if c.near != "" {
		c.spread(out, eps)
	}
	return out
}

// endpoints are those of the cluster's port and subset.
func (c outbound) endpoints(instances *snapshot.Instances) []snapshot.Endpoint {
	if instances == nil {
		return nil
	}
	labels := c.rule.Subset(c.subset).GetLabels()
	var out []snapshot.Endpoint
	for _, e := range instances.Endpoints {
		if e.ServicePort == c.port && snapshot.Selects(labels, e.Labels) {
			out = append(out, e)
		}
	}
	return out
}

// loadAssignment groups endpoints by locality, in the order of the localities' names.
func loadAssignment(name string, eps []snapshot.Endpoint) *endpointv3.ClusterLoadAssignment {
	byLocality := map[string]*endpointv3.LocalityLbEndpoints{}
	for _, e := range eps {
		group := byLocality[e.Locality]
		if group == nil {
			group = &endpointv3.LocalityLbEndpoints{Locality: locality(e.Locality), LoadBalancingWeight: u32(0)}
			byLocality[e.Locality] = group
		}
		lb := lbEndpoint(e)
		group.LoadBalancingWeight.Value += lb.GetLoadBalancingWeight().GetValue()
		group.LbEndpoints = append(group.LbEndpoints, lb)
	}
	localities := make([]string, 0, len(byLocality))
	for l := range byLocality {
		localities = append(localities, l)
	}
	sort.Strings(localities)
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for _, l := range localities {
		cla.Endpoints = append(cla.Endpoints, byLocality[l])
	}
	return cla
}

func countEndpoints(cla *endpointv3.ClusterLoadAssignment) int {
	n := 0
	for _, l := range cla.GetEndpoints() {
		n += len(l.GetLbEndpoints())
	}
	return n
}

// locality reads "region/zone/subzone".
func locality(s string) *corev3.Locality {
	if s == "" {
		return nil
	}
	parts := append(strings.SplitN(s, "/", 3), "", "")
	return &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}

// localityName writes it.
func localityName(l *corev3.Locality) string {
	return strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubZone(), "/")
}

func lbEndpoint(e snapshot.Endpoint) *endpointv3.LbEndpoint {
	at := address(e.Address, e.Port)
	if path, ok := strings.CutPrefix(e.Address, "unix://"); ok {
		at = pipe(path)
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}},
		LoadBalancingWeight: u32(max(1, e.Weight)),
		Metadata:            endpointMetadata(e),
	}
}

// endpointMetadata says whether the endpoint takes mutual TLS, and which workload it is (in Istio's form
// "workload;namespace;app;version;cluster", for logs).
func endpointMetadata(e snapshot.Endpoint) *corev3.Metadata {
	m := map[string]*structpb.Struct{}
	if e.MTLS {
		m["envoy.transport_socket_match"] = stringStruct(map[string]string{"tlsMode": "istio"})
	}
	if e.Workload != "" {
		fields := peerStruct(e)
		workload := strings.Join([]string{e.Workload, e.Namespace, e.Labels["app"], e.Labels["version"], fields.Fields["cluster"].GetStringValue()}, ";")
		fields.Fields["workload"] = structpb.NewStringValue(workload)
		m["istio"] = fields
	}
	if len(m) == 0 {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: m}
}
