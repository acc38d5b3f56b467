// Package meshfuzz generates meshes, and random valid edits of these, for property tests and benchmarks.
package meshfuzz

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Options configure a generated mesh.
type Options struct {
	// Services is the initial number of services; default 8. The first Permanent services are never removed and always
	// have endpoints.
	Services, Permanent int
	// Namespaces is the number of namespaces that contain services; default 3.
	Namespaces int
	// Address returns the address of an instance of a service; nil: addresses in 10.0.0.0/8. Permanent services have
	// the instances 0 and 1, and may have 2 and 3.
	Address func(service, instance int) string
	// Port is the port of the instances; default 8080.
	Port uint32
	// Workloads specifies that workloads of the mesh serve the permanent services. The workloads have sidecars, the
	// label app with the service's name, and the version v0 or v1. They serve HTTP at Port and TCP at TCPPort. Edits
	// then also change mutual TLS.
	Workloads bool
	// TCPPort is the port for TCP; default 9000.
	TCPPort uint32
	// ClusterIP returns the address of a permanent service; nil: services have no address.
	ClusterIP func(service int) string
	// Disruptive allows edits that change the responses of permanent services: faults, redirects, denying policies,
	// restrictive Sidecars, and services that share hosts. Without Disruptive, an instance of a permanent service
	// responds to each request to a permanent service, unless the path begins with /refused. This requires that edits
	// are applied one by one.
	Disruptive bool
}

// Edit is a change of one document.
type Edit struct {
	Key config.Key
	// Document is the new document in JSON; nil removes it.
	Document []byte
}

// File returns a file name for the document.
func (e Edit) File() string {
	return strings.ToLower(string(e.Key.Kind)) + "." + e.Key.Namespace + "." + e.Key.Name + ".json"
}

// Mesh is a generated mesh. It includes the edits so far. The same seed generates the same edits.
type Mesh struct {
	o         Options
	rand      *rand.Rand
	services  []*service
	next      int // number of the next service to add
	documents map[config.Key][]byte
}

// service is a service and the content of its documents.
type service struct {
	number    int
	entry     bool // it is a ServiceEntry instead of a Service
	instances []int
	subsets   bool     // its DestinationRule has the subsets v0 and v1
	rule      bool     // it has a VirtualService
	routes    []target // destinations of its VirtualService
}

// target is the destination of a route.
type target struct {
	service *service
	subset  string
}

type object = map[string]any

// New returns a mesh with all its initial documents.
func New(seed uint64, o Options) *Mesh {
	if o.Services == 0 {
		o.Services = 8
	}
	if o.Namespaces == 0 {
		o.Namespaces = 3
	}
	if o.Port == 0 {
		o.Port = 8080
	}
	if o.TCPPort == 0 {
		o.TCPPort = 9000
	}
	if o.Address == nil {
		o.Address = func(service, instance int) string {
			return fmt.Sprintf("10.%d.%d.%d", service/200%250, service%200, instance+1)
		}
	}
	m := &Mesh{o: o, rand: rand.New(rand.NewPCG(seed, 7)), documents: map[config.Key][]byte{}}
	for range o.Services {
		m.addService()
	}
	return m
}

// Host returns the full name of a service by its number. Every third service is a ServiceEntry.
func (m *Mesh) Host(number int) string {
	return m.host(&service{number: number, entry: isEntry(number)})
}

// Documents returns all documents, sorted by key.
func (m *Mesh) Documents() []Edit {
	edits := make([]Edit, 0, len(m.documents))
	for key, document := range m.documents {
		edits = append(edits, Edit{key, document})
	}
	slices.SortFunc(edits, func(a, b Edit) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return edits
}

// Edit applies a random edit of one document and returns it.
func (m *Mesh) Edit() Edit {
	kinds := nonDisruptiveEdits
	if m.o.Workloads {
		kinds = append(slices.Clone(nonDisruptiveEdits), (*Mesh).editPeersOfWorkloads)
	}
	if m.o.Disruptive {
		kinds = allEdits
	}
	for {
		if e, ok := kinds[m.rand.IntN(len(kinds))](m); ok {
			return e
		}
	}
}

func isEntry(number int) bool { return number%3 == 2 }

func (m *Mesh) namespace(number int) string { return fmt.Sprintf("ns%d", number%m.o.Namespaces) }

func (s *service) name() string { return fmt.Sprintf("s%d", s.number) }

func (m *Mesh) host(s *service) string {
	if s.entry {
		return s.name() + ".example.com"
	}
	return s.name() + "." + m.namespace(s.number) + ".svc.cluster.local"
}

func (m *Mesh) isPermanent(s *service) bool { return s.number < m.o.Permanent }

// hasWorkloads reports whether workloads of the mesh serve the service.
func (m *Mesh) hasWorkloads(s *service) bool { return m.o.Workloads && m.isPermanent(s) }

// put stores a document and returns the edit. ok is false if the document does not change. put does not validate the
// document: the control plane's validation reports mistakes of this package.
func (m *Mesh) put(kind config.Kind, apiVersion, namespace, name string, spec object) (Edit, bool) {
	return m.putFields(kind, apiVersion, namespace, name, object{"spec": spec})
}

// putFields is like put for a document with the top-level fields fields, for example a Secret, which has no spec.
func (m *Mesh) putFields(kind config.Kind, apiVersion, namespace, name string, fields object) (Edit, bool) {
	o := object{"apiVersion": apiVersion, "kind": string(kind), "metadata": object{"name": name, "namespace": namespace}}
	maps.Copy(o, fields)
	document, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	e := Edit{config.Key{Kind: kind, Namespace: namespace, Name: name}, document}
	if string(m.documents[e.Key]) == string(document) {
		return e, false
	}
	m.documents[e.Key] = document
	return e, true
}

func (m *Mesh) remove(kind config.Kind, namespace, name string) (Edit, bool) {
	key := config.Key{Kind: kind, Namespace: namespace, Name: name}
	_, there := m.documents[key]
	delete(m.documents, key)
	return Edit{Key: key}, there
}

// oneIn returns true with probability 1/n.
func (m *Mesh) oneIn(n int) bool { return m.rand.IntN(n) == 0 }

func pick[T any](m *Mesh, list []T) (one T) {
	if len(list) > 0 {
		one = list[m.rand.IntN(len(list))]
	}
	return one
}
