package bootstrap

import (
	"fmt"
	"path"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

// protectedClusters are the clusters that connect Envoy to the agent.
var protectedClusters = []string{xdsCluster, sdsCluster}

// checkProtected returns an error if a change affects the connections between Envoy and the agent, or the identity of
// the workload.
func checkProtected(got, want *bootstrapv3.Bootstrap, author string) error {
	switch {
	case got.GetNode().GetId() != want.GetNode().GetId():
		return fmt.Errorf("%s changes node.id from %[3]q to %[2]q, but the control plane identifies the workload by it: remove this change",
			author, got.GetNode().GetId(), want.GetNode().GetId())
	case !proto.Equal(got.GetAdmin().GetAddress(), want.GetAdmin().GetAddress()):
		return fmt.Errorf("%s changes admin.address, through which the agent polls Envoy: remove this change; to move the admin interface, set "+
			"proxyAdminPort, PROXY_BIND_ADDRESS or ENVOY_ADMIN_SOCKET", author)
	case !proto.Equal(got.GetDynamicResources(), want.GetDynamicResources()):
		return fmt.Errorf("%s changes dynamic_resources, through which Envoy gets its configuration from the agent: remove this change", author)
	}
	for _, name := range protectedClusters {
		ours, theirs := clustersNamed(want, name), clustersNamed(got, name)
		switch {
		case len(theirs) == 0:
			return fmt.Errorf("%s removes the cluster %s, through which Envoy connects to the agent: do not remove it", author, name)
		case len(theirs) > 1 || !proto.Equal(theirs[0], ours[0]):
			return fmt.Errorf("%s changes the cluster %s, through which Envoy connects to the agent: do not change it", author, name)
		}
	}
	if !slices.EqualFunc(secretsNamed(want, agentSecret), secretsNamed(got, agentSecret), equalSecrets) {
		return fmt.Errorf("%s changes the static secret %s, which Envoy presents to the agent: do not change it, and append "+
			"other secrets to the list", author, agentSecret)
	}
	return nil
}

func secretsNamed(b *bootstrapv3.Bootstrap, name string) []*tlsv3.Secret {
	return slices.DeleteFunc(slices.Clone(b.GetStaticResources().GetSecrets()), func(s *tlsv3.Secret) bool { return s.GetName() != name })
}

func equalSecrets(a, b *tlsv3.Secret) bool { return proto.Equal(a, b) }

func clustersNamed(b *bootstrapv3.Bootstrap, name string) []*clusterv3.Cluster {
	var found []*clusterv3.Cluster
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == name {
			found = append(found, c)
		}
	}
	return found
}

// addProtected adds missing fields and clusters that the agent requires to a custom bootstrap. It replaces the custom
// definitions of clusters that connect to the agent's sockets.
func addProtected(custom, own tree) {
	fill(custom, own, "node", "id", "cluster", "locality", "metadata")
	fill(custom, own, "admin", "address")
	if _, has := custom["dynamic_resources"]; !has {
		custom["dynamic_resources"] = clone(own["dynamic_resources"])
	}
	resources, ok := custom["static_resources"].(tree)
	if !ok {
		if custom["static_resources"] != nil {
			return // the field has the wrong type, which validateResult reports
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
		if i := indexOfName(clusters, name); i < 0 {
			clusters = append(clusters, clone(ours))
		} else if theirs, ok := clusters[i].(tree); ok && isSamePipe(theirs, ours) {
			clusters[i] = clone(ours)
		}
	}
	resources["clusters"] = clusters
	addAgentSecret(resources, own)
	if usesAgentCluster(custom) {
		custom["dynamic_resources"] = clone(own["dynamic_resources"])
	}
}

// moveAdmin changes the address of the admin interface in a custom bootstrap from the default port to AdminSocket. It
// also changes the clusters that connect to that port. Bootstraps for Istio's agent contain the port.
func (c Config) moveAdmin(custom, own tree) {
	if c.AdminSocket == "" {
		return
	}
	admin := treeAt(custom, "admin")
	if !isSocketAddress(treeAt(admin, "address"), c.localAddress(), c.adminPort()) {
		return
	}
	admin["address"] = clone(treeAt(own, "admin")["address"])
	clusters, _ := treeAt(custom, "static_resources")["clusters"].([]any)
	for _, cluster := range clusters {
		t, _ := cluster.(tree)
		endpoint := treeAt(firstOf(firstOf(treeAt(t, "load_assignment"), "endpoints"), "lb_endpoints"), "endpoint")
		if isSocketAddress(treeAt(endpoint, "address"), c.localAddress(), c.adminPort()) {
			endpoint["address"] = tree{"pipe": tree{"path": c.AdminSocket}}
		}
	}
}

// isSocketAddress reports whether the address has this host and port.
func isSocketAddress(address tree, host string, port uint32) bool {
	socket := treeAt(address, "socket_address")
	return socket["address"] == host && fmt.Sprint(socket["port_value"]) == fmt.Sprint(port)
}

// addAgentSecret adds the secret to which the protected clusters refer.
func addAgentSecret(resources, own tree) {
	ours, _ := treeAt(own, "static_resources")["secrets"].([]any)
	secrets, ok := resources["secrets"].([]any)
	if len(ours) == 0 || !ok && resources["secrets"] != nil {
		return
	}
	resources["secrets"] = append(slices.Clone(secrets), clone(ours).([]any)...)
}

// isSamePipe reports whether two clusters connect to the same unix socket. Complete bootstraps for Istio's agent
// contain clusters that connect to the agent. This package replaces their definitions, because the agent determines how
// Envoy connects to it.
func isSamePipe(theirs, ours tree) bool {
	there, ok := pipeOf(theirs)
	here, _ := pipeOf(ours)
	return ok && path.Clean(there) == path.Clean(here)
}

func pipeOf(cluster tree) (string, bool) {
	endpoint := firstOf(firstOf(treeAt(cluster, "load_assignment"), "endpoints"), "lb_endpoints")
	socket, ok := treeAt(endpoint, "endpoint", "address", "pipe")["path"].(string)
	return socket, ok
}

// firstOf returns the first element of the list t[list] if it is an object, otherwise nil.
func firstOf(t tree, list string) tree {
	if entries, _ := t[list].([]any); len(entries) > 0 {
		first, _ := entries[0].(tree)
		return first
	}
	return nil
}

// usesAgentCluster reports whether Envoy requests listeners and clusters from the agent.
func usesAgentCluster(t tree) bool {
	resources := treeAt(t, "dynamic_resources")
	service := firstOf(treeAt(resources, "ads_config"), "grpc_services")
	return treeAt(service, "envoy_grpc")["cluster_name"] == xdsCluster &&
		treeAt(resources, "lds_config")["ads"] != nil && treeAt(resources, "cds_config")["ads"] != nil
}

// fill copies those fields from own[object] that are missing in custom[object].
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
	if i := indexOfName(list, name); i >= 0 {
		return list[i]
	}
	return nil
}

func indexOfName(list []any, name string) int {
	return slices.IndexFunc(list, func(entry any) bool { return entryName(entry) == name })
}
