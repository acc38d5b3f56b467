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

// Endpoints returns the load assignments of the clusters whose names are in names. It skips unknown names. If names is
// empty, it returns the assignments of all EDS clusters.
func Endpoints(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	out, err := v.serviceAssignments(names)
	if err != nil || !p.SelfDiscovery || !slices.Contains(names, localCluster) {
		return out, err
	}
	own, err := v.localClusterAssignment()
	return append(slices.Clone(out), own), err
}

// findAssignmentClusters returns the EDS clusters with the specified names.
func findAssignmentClusters(s *snapshot.Snapshot, p *Proxy, names []string) []serviceCluster {
	var out []serviceCluster
	if len(names) == 0 {
		for _, c := range listServiceClusters(s, p) {
			if c.svc.Resolution == registry.Static {
				out = append(out, c)
			}
		}
		return out
	}
	for _, name := range names {
		if c, ok := findServiceCluster(s, p, name); ok && c.svc.Resolution == registry.Static {
			out = append(out, c)
		}
	}
	return out
}

// assignmentKey contains all values on which a load assignment depends.
type assignmentKey struct {
	svc       *registry.Service
	port      uint32
	subset    string
	rule      *snapshot.DestinationRule // nil if there is no subset: the rule then does not affect the endpoints
	instances *snapshot.Instances
	// near identifies the caller's locality, and the mesh configuration, if the endpoints depend on the locality.
	near string
	mesh *meshconfig.MeshConfig
	node string // the caller's node, if it uses only endpoints on its own node
}

func (c serviceCluster) endpointsResource(v proxyView) (*xds.Resource, error) {
	instances := v.p.instances(v.s, c.svc)
	key := assignmentKey{svc: c.svc, port: c.port, subset: c.subset, instances: instances, node: c.node}
	if c.subset != "" || c.localityKey != "" {
		key.rule = c.rule
	}
	if c.localityKey != "" {
		key.near, key.mesh = c.localityKey, c.mesh
	}
	return v.s.Cache.Get(key, func() (*xds.Resource, error) {
		return xds.NewResource(c.name(), c.assignment(instances))
	})
}

// assignment returns the cluster's endpoints, with priorities or weights for the caller's locality.
func (c serviceCluster) assignment(instances *snapshot.Instances) *endpointv3.ClusterLoadAssignment {
	eps := c.endpoints(instances)
	out := loadAssignment(c.name(), eps)
	if c.localityKey != "" {
		c.applyLocality(out, eps)
	}
	return out
}

// endpoints returns the endpoints of the cluster's port and subset.
func (c serviceCluster) endpoints(instances *snapshot.Instances) []snapshot.Endpoint {
	if instances == nil {
		return nil
	}
	labels := c.rule.Subset(c.subset).GetLabels()
	var out []snapshot.Endpoint
	for _, e := range instances.Endpoints {
		if e.ServicePort == c.port && snapshot.Selects(labels, e.Labels) && (!c.svc.NodeLocal || e.Node == c.node) {
			out = append(out, e)
		}
	}
	return out
}

// loadAssignment groups endpoints by locality. The localities are sorted by name.
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

// locality parses "region/zone/subzone". It returns nil if s is empty.
func locality(s string) *corev3.Locality {
	if s == "" {
		return nil
	}
	parts := append(strings.SplitN(s, "/", 3), "", "")
	return &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}

// localityName formats a locality as "region/zone/subzone".
func localityName(l *corev3.Locality) string {
	return strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubZone(), "/")
}

func lbEndpoint(e snapshot.Endpoint) *endpointv3.LbEndpoint {
	at := address(e.Address, e.Port)
	if path, ok := strings.CutPrefix(e.Address, "unix://"); ok {
		at = pipe(path)
	}
	lb := &endpointv3.Endpoint{Address: at}
	if e.SecondAddress != "" {
		lb.AdditionalAddresses = []*endpointv3.Endpoint_AdditionalAddress{{Address: address(e.SecondAddress, e.Port)}}
	}
	status := corev3.HealthStatus_UNKNOWN
	if e.Draining {
		status = corev3.HealthStatus_DRAINING
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: lb},
		HealthStatus:        status,
		LoadBalancingWeight: u32(max(1, e.Weight)),
		Metadata:            endpointMetadata(e),
	}
}

// endpointMetadata describes an endpoint: whether it accepts mutual TLS, and its workload. For logs, the workload has
// Istio's format "workload;namespace;app;version;cluster".
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
