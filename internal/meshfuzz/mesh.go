// Package meshfuzz generates meshes and random valid edits of them, for property tests and benchmarks.
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
	// Services is the initial number of services; zero means 8. The first Kept services are permanent: they are never
	// removed and always have endpoints.
	Services, Permanent int
	// Namespaces is the number of namespaces of the services; zero means 3.
	Namespaces int
	// Address returns the address of an instance of a service; nil means addresses in 10.0.0.0/8. Permanent services
	// have at most the instances 0 to 3, and always 0 and 1.
	Address func(service, instance int) string
	// Port is the port of the instances; zero means 8080.
	Port uint32
	// Workloads means that workloads of the mesh serve the permanent services. They have sidecars, a label app with the
	// service's name, and the version v0 or v1; they serve HTTP at Port and TCP at another port. Edits then include
	// mutual TLS.
	Workloads bool
	// TCPPort is the port for TCP; zero means 9000.
	TCPPort uint32
	// ClusterIP returns the address of a permanent service; nil means none.
	ClusterIP func(service int) string
	// Disruptive allows edits that change the responses of permanent services: faults, redirects, denying policies,
	// restrictive Sidecars, services that share hosts. Without Wild, an instance of a permanent service answers every
	// request to a permanent service whose path does not begin with /refused, if edits are applied one by one.
	Disruptive bool
}

// Edit is a change of one document.
type Edit struct {
	Key config.Key
	// Document is the new document in JSON; nil removes it.
	Document []byte
}

// File returns the name of a file for the document.
func (e Edit) File() string {
	return strings.ToLower(string(e.Key.Kind)) + "." + e.Key.Namespace + "." + e.Key.Name + ".json"
}

// Mesh is a generated mesh with the edits so far. The same seed generates the same edits.
type Mesh struct {
	o         Options
	rand      *rand.Rand
	services  []*service
	next      int // number of the next new service
	documents map[config.Key][]byte
}

// service is a service and the content of its documents.
type service struct {
	number    int
	entry     bool // a ServiceEntry, not a Service
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

// Edit changes one document.
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

// put creates an edit of a document. It does not validate the document: the reader's validation reports mistakes of
// this package.
func (m *Mesh) put(kind config.Kind, apiVersion, namespace, name string, spec object) (Edit, bool) {
	return m.putFields(kind, apiVersion, namespace, name, object{"spec": spec})
}

// putFields creates an edit of a document that has other fields than spec.
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
