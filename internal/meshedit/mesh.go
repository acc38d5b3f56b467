// Package meshedit makes meshes and random valid edits of them, for tests of what has to hold whatever is edited, and
// for measurements.
package meshedit

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Options say what a mesh is like.
type Options struct {
	// Services is how many there are at first; 8 when zero. The first Kept of them are never removed, and are served at
	// every moment.
	Services, Kept int
	// Namespaces is how many the services are spread over; 3 when zero.
	Namespaces int
	// Address gives where an instance of a service listens; addresses in 10.0.0.0/8 when nil. Kept services have
	// instances 0 to 3 at most, of which 0 and 1 always are there.
	Address func(service, instance int) string
	// Port is the port that instances listen on; 8080 when zero.
	Port uint32
	// Workloads says that kept services are served by workloads of the mesh itself, which have sidecars, the label app of the
	// service's name, and a version v0 or v1: HTTP on Port and, on another, TCP. Then edits are about mutual TLS, too.
	Workloads bool
	// TCPPort is that of TCP; 9000 when zero.
	TCPPort uint32
	// ClusterIP gives the address of a kept service, which has none when nil.
	ClusterIP func(service int) string
	// Wild allows edits that requests to kept services may notice: faults, redirects, policies that refuse, narrow
	// Sidecars, services that come to share hosts. Without it, every request to a kept service whose path does not begin
	// with /refused is answered by an instance of a kept service at every moment, if edits are applied one by one.
	Wild bool
}

// Edit is one change of one document.
type Edit struct {
	Key config.Key
	// Document is the document as it is now, in JSON; nil when it is removed.
	Document []byte
}

// File is a name for a file that holds the document alone.
func (e Edit) File() string {
	return strings.ToLower(string(e.Key.Kind)) + "." + e.Key.Namespace + "." + e.Key.Name + ".json"
}

// Mesh is a mesh as it was edited so far. The same seed makes the same edits.
type Mesh struct {
	o         Options
	rand      *rand.Rand
	services  []*service
	next      int // number of the next service
	documents map[config.Key][]byte
}

// service is one service and what the documents say of it.
type service struct {
	number    int
	entry     bool // a ServiceEntry, and not a Service
	instances []int
	subsets   bool     // its DestinationRule has the subsets v0 and v1
	rule      bool     // it has a VirtualService
	routes    []target // where that routes to
}

// target is where a route leads.
type target struct {
	service *service
	subset  string
}

type object = map[string]any

// New makes a mesh. Its documents are all there from the start.
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

// Host is the full name of a service by its number: of a Service or, of each third one, of a ServiceEntry.
func (m *Mesh) Host(number int) string {
	return m.host(&service{number: number, entry: isEntry(number)})
}

// Documents are all documents, ordered by their keys.
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
	kinds := calm
	if m.o.Workloads {
		kinds = append(slices.Clone(calm), (*Mesh).editPeersOfWorkloads)
	}
	if m.o.Wild {
		kinds = wild
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

func (m *Mesh) kept(s *service) bool { return s.number < m.o.Kept }

// ofMesh says whether the mesh itself has the service's workloads.
func (m *Mesh) ofMesh(s *service) bool { return m.o.Workloads && m.kept(s) }

// put makes an edit of a document: one that is not valid is a mistake of this package, which whoever reads it finds.
func (m *Mesh) put(kind config.Kind, apiVersion, namespace, name string, spec object) (Edit, bool) {
	return m.putFields(kind, apiVersion, namespace, name, object{"spec": spec})
}

// putFields is put of a document that has other fields than a spec.
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

// oneIn says yes once in so many times.
func (m *Mesh) oneIn(n int) bool { return m.rand.IntN(n) == 0 }

func pick[T any](m *Mesh, list []T) (one T) {
	if len(list) > 0 {
		one = list[m.rand.IntN(len(list))]
	}
	return one
}
