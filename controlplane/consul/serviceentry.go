package consul

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// maxPorts limits the ports of one service. Instances with dynamic ports could add any number.
const maxPorts = 16

// protocols are the values of the metadata key protocol.
var protocols = []string{"http", "http2", "grpc", "grpc-web", "https", "tls", "tcp", "mongo", "mysql", "redis"}

// builder converts the instances of one service to a ServiceEntry.
type builder struct {
	cfg       Config
	source    string // config.Position.File of the problems
	name      string // of the service, in lower case
	instances []instance
	problems  []config.Problem
}

// key returns the key of the ServiceEntry. Names of documents have no "_", so the source replaces this character and
// appends a hash of the original name.
func (c Config) key(name string) config.Key {
	if strings.Contains(name, "_") {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name))
		name = fmt.Sprintf("%s-%08x", strings.Trim(strings.ReplaceAll(name, "_", "-"), "-"), h.Sum32())
	}
	return config.Key{Kind: config.ServiceEntry, Namespace: c.Namespace, Name: name}
}

func (b *builder) warn(field, value, message, remedy string) {
	b.problems = append(b.problems, config.Problem{
		Code: config.Questionable, Severity: config.Warning, Key: b.cfg.key(b.name), At: config.Position{File: b.source},
		Field: field, Value: value, Message: message, Remedy: remedy,
	})
}

// build returns the valid ServiceEntry of the service, or nil, and the problems. Each port of the service leads to all
// healthy instances, each at its own port.
func (b *builder) build() (*config.Resource, []config.Problem) {
	ports := b.ports()
	spec := &networking.ServiceEntry{
		Hosts:      []string{b.name + ".service." + b.cfg.Domain},
		Ports:      ports,
		Location:   networking.ServiceEntry_MESH_INTERNAL,
		Resolution: networking.ServiceEntry_STATIC,
	}
	if !slices.ContainsFunc(b.instances, func(i instance) bool { return !i.external }) {
		spec.Location = networking.ServiceEntry_MESH_EXTERNAL
	}
	for _, i := range b.instances {
		if i.healthy {
			spec.Endpoints = append(spec.Endpoints, newEndpoint(i, ports))
		}
	}
	// Without endpoints, proxies would resolve the host of a service with DNS resolution.
	if len(spec.Endpoints) > 0 && slices.ContainsFunc(b.instances, func(i instance) bool { return !i.hasIP() }) {
		spec.Resolution = networking.ServiceEntry_DNS
	}
	r := &config.Resource{Key: b.cfg.key(b.name), APIVersion: config.ServiceEntry.APIVersions()[0], Spec: spec}
	valid, problems, _ := b.cfg.Parser.ParseResource(r, b.source)
	if len(spec.Endpoints) == 0 {
		problems = slices.DeleteFunc(problems, func(p config.Problem) bool { return p.Severity == config.Warning && p.Field == "spec.endpoints" })
	}
	return valid, append(problems, b.problems...)
}

func newEndpoint(i instance, ports []*networking.ServicePort) *networking.WorkloadEntry {
	endpoint := &networking.WorkloadEntry{
		Address: i.address, Labels: i.labels, ServiceAccount: i.account, Locality: i.locality, Ports: map[string]uint32{},
	}
	if i.weight > 1 {
		endpoint.Weight = i.weight
	}
	for _, port := range ports {
		if port.GetNumber() != i.port {
			endpoint.Ports[port.GetName()] = i.port
		}
	}
	return endpoint
}

// ports returns the ports of the service: the port of each instance, or the one in its metadata.
func (b *builder) ports() []*networking.ServicePort {
	protocol := b.protocol()
	prefix := protocol
	if prefix == "" {
		prefix = "port"
	}
	numbers := map[uint32]bool{}
	for _, i := range b.instances {
		numbers[i.servicePort] = true
	}
	sorted := slices.Sorted(maps.Keys(numbers))
	if len(sorted) > maxPorts {
		b.warn("Port", "", fmt.Sprintf("the instances have %d different ports; the service has only the %d lowest", len(sorted), maxPorts),
			"set the same port in the metadata key "+portKey+" of all instances")
		sorted = sorted[:maxPorts]
	}
	var ports []*networking.ServicePort
	for _, number := range sorted {
		ports = append(ports, &networking.ServicePort{Number: number, Name: fmt.Sprintf("%s-%d", prefix, number), Protocol: strings.ToUpper(protocol)})
	}
	return ports
}

// protocol returns the protocol of the service in lower case. It is empty if the metadata contain none: proxies then
// detect the protocol of each connection.
func (b *builder) protocol() string {
	var found string
	for _, i := range b.instances {
		switch {
		case i.protocol == "" || i.protocol == found:
		case !slices.Contains(protocols, i.protocol):
			b.warn(i.String()+": Meta["+protocolKey+"]", i.protocol, "an unknown protocol, which has no effect", "use one of "+strings.Join(protocols, ", "))
		case found == "":
			found = i.protocol
		default:
			b.warn(i.String()+": Meta["+protocolKey+"]", i.protocol, "another instance has the protocol "+found+", which the proxies use", "set the same protocol for all instances")
		}
	}
	return found
}
