// Package mesh runs a whole mesh on one machine: it reads a topology of workloads, gives each an address, a sidecar and
// its configuration, starts them as processes, watches over them, tells what happens, and leaves nothing behind.
package mesh

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// APIVersion and Kind are the head of a topology file.
const (
	APIVersion = "pilotfish.dev/v1alpha1"
	Kind       = "Mesh"
)

// Topology is what a topology file says, with every default filled in. docs/topology.md describes the fields.
type Topology struct {
	// File is the file it was read from; relative paths in it start at the file's folder.
	File string
	Name string
	// Config are the files and directories of Istio and Kubernetes documents, absolute or relative to the working directory.
	Config []string
	// Network is the /16 of loopback addresses that the mesh asks for; the zero Prefix takes the first that is free.
	Network     netip.Prefix
	TrustDomain string
	// Mesh is Istio's mesh configuration; never nil. Where it is in a file, MeshFile, it is what that said when it was loaded.
	Mesh     *meshconfig.MeshConfig
	MeshFile string
	// MeshProblems are what of Mesh has no effect, where it is in the topology file itself.
	MeshProblems []config.Problem
	Workloads    []*Workload

	// places are the paths that the file names, for messages about those that do not exist.
	places []fileReference
	spec   value
}

// WorkloadType says what stands behind a workload's proxy.
type WorkloadType string

const (
	// Service is an application with a sidecar.
	Service WorkloadType = "service"
	// Gateway is a proxy of its own, without an application.
	Gateway WorkloadType = "gateway"
)

// RestartRule says when an application that ended is started again.
type RestartRule string

// The restart rules of an application. A sidecar is always restarted.
const (
	RestartAlways    RestartRule = "always"
	RestartOnFailure RestartRule = "on-failure"
	RestartNever     RestartRule = "never"
)

// Workload is one entry of spec.workloads: an application, or a gateway, and how many of it.
type Workload struct {
	Name           string
	Namespace      string
	Type           WorkloadType
	Labels         map[string]string
	Annotations    map[string]string
	ServiceAccount string
	Ports          []Port
	// Command is the argument list, with its variables not yet expanded; empty for a gateway.
	Command    []string
	Env        map[string]string
	WorkingDir string
	Replicas   int
	Restart    RestartRule
	Upstreams  []Upstream
	Readiness  Readiness
	// StartupTimeout is how long an instance may take before it is reported as late.
	StartupTimeout time.Duration
	// At is where the workload stands in the file.
	At config.Position

	origin value
}

// Port is a port that the application (or the gateway's proxy) listens on.
type Port struct {
	Name     string
	Port     uint16
	Protocol string
	// Publish is the address outside the mesh's own at which a gateway's port is reached; the zero AddrPort publishes nothing.
	Publish netip.AddrPort
}

// Upstream is a TCP service that the application reaches at an address of its own.
type Upstream struct {
	Name string
	Host string
	Port uint16
}

// Readiness says when the application counts as ready. Path empty: when the port accepts a connection.
type Readiness struct {
	Path string
	// Port is 0 for the workload's first port. A workload without ports is ready once it runs.
	Port uint16
}

// Load reads a topology file. What is wrong with it comes back as an *InvalidError that lists every problem with its
// place; a file that cannot be read as an *os.PathError.
func Load(path string) (*Topology, error) {
	data, err := readTopologyFile(path)
	if err != nil {
		return nil, err
	}
	doc, t, err := read(path, data)
	if err != nil {
		return nil, err
	}
	t.checkFiles(doc)
	if err := doc.invalid(); err != nil {
		return nil, err
	}
	t.checkMesh(doc)
	if err := doc.invalid(); err != nil {
		return nil, err
	}
	t.fillDefaults()
	return t, nil
}

// baseDir is the folder that the file's relative paths start at.
func (t *Topology) baseDir() string { return filepath.Dir(t.File) }

// instanceName is the name of a workload's replica; there is no number behind the name of an only one.
func (w *Workload) instanceName(replica int) string {
	if w.Replicas <= 1 {
		return w.Name
	}
	return fmt.Sprintf("%s-%d", w.Name, replica)
}

// FirstPort is the port of ${PORT}, or 0 without ports.
func (w *Workload) FirstPort() uint16 {
	if len(w.Ports) == 0 {
		return 0
	}
	return w.Ports[0].Port
}

// Rename gives the mesh another name than its file's, so that it can run beside one that has it.
func (t *Topology) Rename(name string) error {
	if !dnsLabel.MatchString(name) || len(name) > maxNameLength {
		return fmt.Errorf("%q is not a name for a mesh: use lower-case letters, digits and dashes, %d characters at most", name, maxNameLength)
	}
	t.Name = name
	return nil
}

// InstanceNames are the names of all instances, in the order of the file.
func (t *Topology) InstanceNames() []string {
	var names []string
	for _, w := range t.Workloads {
		for i := 1; i <= w.Replicas; i++ {
			names = append(names, w.instanceName(i))
		}
	}
	return names
}
