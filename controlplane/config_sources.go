package controlplane

import (
	"context"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/mcp"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
)

// configSource is a store of documents from outside the process: files, or another control plane. While the source
// cannot be read, its last accepted documents stay in force.
type configSource interface {
	config.Store
	// Run updates the store until the context ends.
	Run(ctx context.Context) error
	// Synced returns a channel that is closed when the store has received all documents for the first time. Proxies
	// receive no configuration before that time, because a missing policy could permit requests.
	Synced() <-chan struct{}
	// Health reports whether the source can be read, and the reason if not.
	Health() (ok bool, reason string)
	// Problems returns the findings of the source and of its documents.
	Problems() []config.Problem
	// Documents returns the state of each document.
	Documents() []config.Document
}

// openStores opens the configuration sources. If two sources have a document with the same key, the directories have
// precedence, then Config.Stores, then the other sources in the order of the mesh configuration.
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
	own := slices.Clone(documents)
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
	s.readers, err = newDocumentReaders(s.cfg.DocumentReaders, s.authority.TrustDomain(), config.NewMultiStore(append(own, s.registrar)...))
	return err
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
			Parser:  config.Parser{Check: envoyfilter.Check, StartsProxies: s.cfg.StartsProxies, OnInvalidPolicy: s.cfg.OnInvalidPolicy},
			Metrics: metrics, Logger: s.log,
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

// sourceHealth returns the reason why the first unreadable source cannot be read, or "" if all sources can be read.
func (s *Server) sourceHealth() string {
	for _, source := range s.sources {
		if ok, reason := source.Health(); !ok {
			return reason
		}
	}
	return ""
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
