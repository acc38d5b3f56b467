package consul

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// entry is one element of the response to /v1/health/service/NAME, with the fields that the source uses.
type entry struct {
	Node struct {
		Node, Address, Datacenter string
		Meta                      map[string]string
		Locality                  *locality
	}
	Service struct {
		Kind, ID, Address string
		Port              int
		Tags              []string
		Meta              map[string]string
		Weights           struct{ Passing int }
		Locality          *locality
	}
	Checks []struct{ Status string }
}

// locality is the location of a node or service, which Consul reports since version 1.17.
type locality struct{ Region, Zone string }

// Keys of a service's metadata that have a meaning for the mesh. Consul allows letters, digits, '-' and '_' in keys.
const (
	protocolKey = "protocol"
	portKey     = "service-port"
	accountKey  = "service-account"
)

const (
	// clusterLabel is Istio's label for the cluster of a workload. Its value is the datacenter.
	clusterLabel = "topology.istio.io/cluster"
	appLabel     = "app"
	// externalNode is the key of a node's metadata that marks a service outside the network of Consul's agents.
	externalNode = "external-node"
	// tagValue is the value of the label for a tag without "=".
	tagValue = "true"
	passing  = "passing"
)

// instance is one instance of a service.
type instance struct {
	node, id    string
	datacenter  string
	address     string // IP address or host name
	port        uint32
	servicePort uint32 // port to which clients connect
	protocol    string
	account     string
	labels      map[string]string
	locality    string
	weight      uint32
	healthy     bool
	external    bool
}

func (i instance) String() string { return fmt.Sprintf("instance %q on node %q", i.id, i.node) }

// hasIP reports whether the address of the instance is an IP address.
func (i instance) hasIP() bool {
	_, err := netip.ParseAddr(i.address)
	return err == nil
}

func compareInstances(a, b instance) int {
	return cmp.Or(cmp.Compare(a.datacenter, b.datacenter), cmp.Compare(a.node, b.node), cmp.Compare(a.id, b.id))
}

// flaw is an invalid value of an instance. The source does not use the instance.
type flaw struct{ field, value, message, remedy string }

// readInstances converts the response for one service. It omits instances without a port and the proxies and gateways
// of Consul's own mesh. If tags is not empty, it also omits instances that lack one of the tags. flaws are the reasons
// for which it omits others.
func readInstances(name string, entries []entry, tags []string) (instances []instance, flaws []flaw) {
	for _, e := range entries {
		if e.Service.Kind != "" || e.Service.Port == 0 || !containsAll(e.Service.Tags, tags) {
			continue
		}
		i, found := newInstance(name, e)
		if found != nil {
			flaws = append(flaws, *found)
			continue
		}
		instances = append(instances, i)
	}
	slices.SortFunc(instances, compareInstances)
	return instances, flaws
}

func containsAll(list, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(tag string) bool { return !slices.Contains(list, tag) })
}

// hostName matches the addresses of instances that proxies resolve.
var hostName = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?(\.[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?)*\.?$`)

// newInstance converts an entry. It returns a flaw if a value is invalid.
func newInstance(name string, e entry) (instance, *flaw) {
	i := instance{
		node: e.Node.Node, id: e.Service.ID, datacenter: e.Node.Datacenter,
		address: cmp.Or(e.Service.Address, e.Node.Address),
		port:    uint32(e.Service.Port), servicePort: uint32(e.Service.Port),
		protocol: strings.ToLower(e.Service.Meta[protocolKey]), account: e.Service.Meta[accountKey],
		locality: readLocality(e), weight: uint32(min(max(e.Service.Weights.Passing, 1), maxWeight)),
		healthy: isHealthy(e), external: e.Node.Meta[externalNode] == "true",
	}
	fail := func(field, value, message, remedy string) (instance, *flaw) {
		return instance{}, &flaw{field: i.String() + ": " + field, value: value, message: message, remedy: remedy}
	}
	if e.Service.Port < 0 || e.Service.Port > 65535 {
		return fail("Port", strconv.Itoa(e.Service.Port), "not a port number", "register the instance with a port between 1 and 65535")
	}
	if !i.hasIP() && (len(i.address) > 253 || !hostName.MatchString(i.address)) {
		return fail("Address", i.address, "neither an IP address nor a host name", "register the instance with its IP address")
	}
	if i.account != "" && (len(i.account) > 253 || !dnsSubdomain.MatchString(i.account)) {
		return fail("Meta["+accountKey+"]", i.account, "not the name of a service account", "use lower-case letters, digits, '-' and '.'")
	}
	if text, ok := e.Service.Meta[portKey]; ok {
		number, err := strconv.ParseUint(text, 10, 16)
		if err != nil || number == 0 {
			return fail("Meta["+portKey+"]", text, "not a port number", "set a number between 1 and 65535")
		}
		i.servicePort = uint32(number)
	}
	i.labels = readLabels(name, e)
	return i, nil
}

// maxWeight is Consul's maximum weight.
const maxWeight = 65535

// isHealthy reports whether all checks of the node and the service pass. In maintenance mode, Consul adds a critical
// check.
func isHealthy(e entry) bool {
	for _, check := range e.Checks {
		if check.Status != passing {
			return false
		}
	}
	return true
}

// readLabels returns the labels of an instance: its tags ("key=value", or "key" for the value "true"), its metadata,
// the name of the service as "app", and the datacenter as the cluster. Metadata have precedence over tags. readLabels
// omits values that are no valid labels, because many tags are settings of other programs.
func readLabels(name string, e entry) map[string]string {
	labels := map[string]string{}
	set := func(key, value string) {
		if config.IsLabel(key, value) {
			labels[key] = value
		}
	}
	set(appLabel, name)
	for _, tag := range e.Service.Tags {
		key, value, ok := strings.Cut(tag, "=")
		if !ok {
			value = tagValue
		}
		set(key, value)
	}
	for key, value := range e.Service.Meta {
		set(key, value)
	}
	delete(labels, clusterLabel)
	set(clusterLabel, e.Node.Datacenter)
	return labels
}

// readLocality returns the region and zone, or the datacenter as the region.
func readLocality(e entry) string {
	l := e.Service.Locality
	if l == nil {
		l = e.Node.Locality
	}
	switch {
	case l == nil || l.Region == "" || strings.Contains(l.Region+l.Zone, "/"):
		return e.Node.Datacenter
	case l.Zone == "":
		return l.Region
	}
	return l.Region + "/" + l.Zone
}
