package bootstrap

import (
	"fmt"
	"path"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
)

// protectedClusters are those by which Envoy reaches the agent.
var protectedClusters = []string{xdsCluster, sdsCluster}

// protected refuses a bootstrap by which Envoy would not find the agent, the agent not Envoy, or the control plane not
// the workload.
func protected(got, want *bootstrapv3.Bootstrap, author string) error {
	switch {
	case got.GetNode().GetId() != want.GetNode().GetId():
		return fmt.Errorf("%s makes node.id %q of %q; the control plane knows the workload by it: leave it out",
			author, got.GetNode().GetId(), want.GetNode().GetId())
	case !proto.Equal(got.GetAdmin().GetAddress(), want.GetAdmin().GetAddress()):
		return fmt.Errorf("%s changes admin.address, where the agent asks Envoy how it is: leave it out, and set "+
			"proxyAdminPort or PROXY_BIND_ADDRESS", author)
	case !proto.Equal(got.GetDynamicResources(), want.GetDynamicResources()):
		return fmt.Errorf("%s changes dynamic_resources, by which Envoy gets its configuration from the agent: leave them out", author)
	}
	for _, name := range protectedClusters {
		ours, theirs := clustersNamed(want, name), clustersNamed(got, name)
		switch {
		case len(theirs) == 0:
			return fmt.Errorf("%s removes the cluster %s, by which Envoy reaches the agent: leave it there", author, name)
		case len(theirs) > 1 || !proto.Equal(theirs[0], ours[0]):
			return fmt.Errorf("%s changes the cluster %s, by which Envoy reaches the agent: leave it as it is", author, name)
		}
	}
	return nil
}

func clustersNamed(b *bootstrapv3.Bootstrap, name string) []*clusterv3.Cluster {
	var found []*clusterv3.Cluster
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == name {
			found = append(found, c)
		}
	}
	return found
}

// addProtected gives a custom bootstrap what it need not have of its own, and cannot do without.
func addProtected(custom, own tree) {
	fill(custom, own, "node", "id", "cluster", "locality", "metadata")
	fill(custom, own, "admin", "address")
	if _, has := custom["dynamic_resources"]; !has {
		custom["dynamic_resources"] = clone(own["dynamic_resources"])
	}
	resources, ok := custom["static_resources"].(tree)
	if !ok {
		if custom["static_resources"] != nil {
			return // of a wrong kind, which the decoder tells
		}
		resources = tree{}
		custom["static_resources"] = resources
	}
	clusters, ok := resources["clusters"].([]any)
	if !ok && resources["clusters"] != nil {
		return
	}
	for _, name := range protectedClusters {
		ours := entryNamed(own["static_resources"].(tree)["clusters"].([]any), name).(tree)
		if i := placeNamed(clusters, name); i < 0 {
			clusters = append(clusters, clone(ours))
		} else if theirs, ok := clusters[i].(tree); ok && samePipe(theirs, ours) {
			clusters[i] = clone(ours)
		}
	}
	resources["clusters"] = clusters
	if asksTheAgent(custom) {
		custom["dynamic_resources"] = clone(own["dynamic_resources"])
	}
}

// samePipe says that a cluster leads to the same socket as ours. Whole bootstraps that were written for Istio's agent have
// these clusters; how Envoy gets on with the agent behind them is for the agent to say.
func samePipe(theirs, ours tree) bool {
	there, ok := pipeOf(theirs)
	here, _ := pipeOf(ours)
	return ok && path.Clean(there) == path.Clean(here)
}

func pipeOf(cluster tree) (string, bool) {
	endpoint := firstOf(firstOf(treeAt(cluster, "load_assignment"), "endpoints"), "lb_endpoints")
	socket, ok := treeAt(endpoint, "endpoint", "address", "pipe")["path"].(string)
	return socket, ok
}

// firstOf is the first object of a list.
func firstOf(t tree, list string) tree {
	if entries, _ := t[list].([]any); len(entries) > 0 {
		first, _ := entries[0].(tree)
		return first
	}
	return nil
}

// asksTheAgent says that listeners and clusters come over the agent's cluster.
func asksTheAgent(t tree) bool {
	resources := treeAt(t, "dynamic_resources")
	service := firstOf(treeAt(resources, "ads_config"), "grpc_services")
	return treeAt(service, "envoy_grpc")["cluster_name"] == xdsCluster &&
		treeAt(resources, "lds_config")["ads"] != nil && treeAt(resources, "cds_config")["ads"] != nil
}

// fill adds the fields of an object that it does not have.
func fill(custom, own tree, object string, fields ...string) {
	into, ok := custom[object].(tree)
	if !ok {
		if custom[object] != nil {
			return
		}
		into = tree{}
		custom[object] = into
	}
	from, _ := own[object].(tree)
	for _, field := range fields {
		if _, has := into[field]; !has && from[field] != nil {
			into[field] = clone(from[field])
		}
	}
}

func entryNamed(list []any, name string) any {
	if i := placeNamed(list, name); i >= 0 {
		return list[i]
	}
	return nil
}

func placeNamed(list []any, name string) int {
	return slices.IndexFunc(list, func(entry any) bool { return nameIn(entry) == name })
}
