package controlplane

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/consul"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/mcp"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
)

// Source is a store of documents from outside the process: files, another control plane, or a cluster. While the source
// cannot be read, its last accepted documents stay in force.
type Source interface {
	config.Store
	// Run updates the store until the context ends.
	Run(ctx context.Context) error
	// Synced returns a channel that is closed when the store has received all documents for the first time. Proxies
	// receive no configuration before that time, because a missing policy could permit requests.
	Synced() <-chan struct{}
	// Health reports whether the source can be read, and the reason if not. Before Synced is closed, the reason names
	// what is missing.
	Health() (ok bool, reason string)
	// Problems returns the findings of the source and of its documents.
	Problems() []config.Problem
	// Documents returns the state of each document.
	Documents() []config.Document
}

// MeshSource is a source of the mesh configuration.
type MeshSource interface {
	// Mesh returns the valid configuration in effect; nil means the defaults. It returns the same pointer until the
	// configuration changes.
	Mesh() *meshconfig.MeshConfig
	// Problems returns the findings of the configuration.
	Problems() []config.Problem
	// Run updates the configuration until ctx ends. It calls changed after each change.
	Run(ctx context.Context, changed func())
}

// meshUser is a Source that depends on the mesh configuration.
type meshUser interface {
	// UseMesh sets the mesh configuration. The server calls it before Run, and after each change. UseMesh does not
	// block.
	UseMesh(mesh *meshconfig.MeshConfig)
}

// openStores opens the configuration sources. If two sources have a document with the same key, the directories have
// precedence, then Config.Stores, then Config.Sources, then the other control planes in the order of the mesh
// configuration.
func (s *Server) openStores() (err error) {
	var documents []config.Store
	paths, servers := splitSources(s.mesh())
	s.startedSources = s.mesh().GetConfigSources()
	if paths = append(slices.Clone(s.cfg.ConfigDirs), paths...); len(paths) > 0 {
		s.dirs, err = dirstore.New(dirstore.Config{
			Paths: paths, Check: envoyfilter.Check, StartsProxies: s.cfg.StartsProxies, OnInvalidPolicy: s.cfg.OnInvalidPolicy, LastGood: filepath.Join(s.cfg.StateDir, lastGoodFile), Logger: s.log,
		})
		if err != nil {
			return err
		}
		documents = append(documents, s.dirs)
		s.sources = append(s.sources, s.dirs)
	}
	documents = append(documents, s.cfg.Stores...)
	for _, source := range s.cfg.Sources {
		documents = append(documents, source)
		s.sources = append(s.sources, source)
	}
	own := slices.Clone(documents)
	if s.cfg.Consul.Address != "" {
		source, err := s.openConsul()
		if err != nil {
			return err
		}
		documents = append(documents, source)
		s.remote = append(s.remote, source)
		s.sources = append(s.sources, source)
	}
	for _, source := range s.openServers(servers) {
		documents = append(documents, source)
		s.remote = append(s.remote, source)
		s.sources = append(s.sources, source)
	}
	s.registrar = registration.New(registration.Config{
		Groups: config.NewMultiStore(documents...), File: filepath.Join(s.cfg.StateDir, registeredFile), LocalNetworks: s.cfg.LocalNetworks,
		Logger: s.log, Registerer: s.registry,
	})
	s.store = config.NewMultiStore(append(documents, s.registrar)...)
	s.notifyMeshUsers()
	s.readers, err = newDocumentReaders(s.cfg.DocumentReaders, s.authority.TrustDomain(), config.NewMultiStore(append(own, s.registrar)...))
	return err
}

func (s *Server) openConsul() (*consul.Source, error) {
	cfg := s.cfg.Consul
	cfg.TLS.Policy, cfg.Parser, cfg.Metrics, cfg.Logger = s.cfg.TLSPolicy, s.parser(), consul.NewMetrics(s.registry), s.log
	return consul.New(cfg)
}

// parser returns the parser for the documents of sources that are not files.
func (s *Server) parser() config.Parser {
	return config.Parser{Check: envoyfilter.Check, StartsProxies: s.cfg.StartsProxies, OnInvalidPolicy: s.cfg.OnInvalidPolicy}
}

// splitSources returns the configuration sources of mesh: the paths of directories, and the xDS servers.
func splitSources(mesh *meshconfig.MeshConfig) (paths []string, servers []*meshconfig.ConfigSource) {
	for _, source := range mesh.GetConfigSources() {
		switch address, _ := config.ParseSourceAddress(source.GetAddress()); address.Scheme { // the mesh configuration is valid
		case config.SchemeFiles:
			paths = append(paths, address.Path)
		case config.SchemeXDS:
			servers = append(servers, source)
		}
	}
	return paths, servers
}

func (s *Server) openServers(servers []*meshconfig.ConfigSource) []*mcp.Source {
	metrics := mcp.NewMetrics(s.registry)
	var sources []*mcp.Source
	for _, server := range servers {
		address, _ := config.ParseSourceAddress(server.GetAddress()) // the mesh configuration is valid
		sources = append(sources, mcp.New(mcp.Config{
			Address: address.HostPort, Server: mcp.NewServer(server.GetTlsSettings(), s.cfg.ConfigSourceTokenFile, s.cfg.TLSPolicy), Namespace: s.rootNamespace(),
			Parser: s.parser(), Metrics: metrics, Logger: s.log,
		}))
	}
	return sources
}

// awaitSources waits until all sources have received their documents. It returns false if ctx ends first.
func (s *Server) awaitSources(ctx context.Context) bool {
	for _, source := range s.sources {
		select {
		case <-ctx.Done():
			return false
		case <-source.Synced():
		}
	}
	return true
}

// notifyMeshUsers passes the mesh configuration to the sources that depend on it.
func (s *Server) notifyMeshUsers() {
	for _, source := range s.sources {
		if user, ok := source.(meshUser); ok {
			user.UseMesh(s.mesh())
		}
	}
}

// sourceHealth returns the reasons why sources cannot be read, or "" if all sources can be read.
func (s *Server) sourceHealth() string {
	var reasons []string
	for _, source := range s.sources {
		if ok, reason := source.Health(); !ok {
			reasons = append(reasons, reason)
		}
	}
	return strings.Join(reasons, "; ")
}

// sourceProblems returns the findings of all sources, and a warning if configSources has changed since the control
// plane started.
func (s *Server) sourceProblems() []config.Problem {
	var problems []config.Problem
	if !slices.EqualFunc(s.startedSources, s.mesh().GetConfigSources(), func(a, b *meshconfig.ConfigSource) bool { return proto.Equal(a, b) }) {
		problems = append(problems, config.Problem{
			Code: config.NoEffect, Severity: config.Warning, At: config.Position{File: s.cfg.MeshConfigFile}, Field: "configSources",
			Message: "changed configuration sources have no effect before the next start", Remedy: "restart the control plane",
		})
	}
	for _, source := range s.sources {
		problems = append(problems, source.Problems()...)
	}
	return problems
}
