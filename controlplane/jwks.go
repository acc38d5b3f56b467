package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

// KeyFetching configures how the control plane fetches the keys of token issuers, from the URLs in
// RequestAuthentications.
type KeyFetching struct {
	// Refresh is the refresh interval; default 20 minutes.
	Refresh time.Duration
	// RootsFile is a PEM file of root certificates that are trusted in addition to the system's roots.
	RootsFile string
	// ByProxy makes proxies fetch the keys themselves if the URL belongs to a service of the mesh.
	ByProxy bool
	// Blocked lists networks from which the control plane fetches no keys, in addition to link-local and metadata
	// addresses.
	Blocked []netip.Prefix
	// AllowLoopback allows loopback addresses, even if the control plane serves other machines. Loopback addresses are
	// always allowed if the control plane listens on a loopback address.
	AllowLoopback bool
	// Hosts contains the addresses of hosts that DNS cannot resolve.
	Hosts map[string]netip.Addr
}

// fetchGuard returns the guard that decides from which addresses the control plane may fetch keys, because the authors
// of documents choose the URLs.
func (c Config) fetchGuard() fetchguard.Guard {
	return fetchguard.Guard{Blocked: c.Keys.Blocked, NoLoopback: !isLoopback(c.Address) && !c.Keys.AllowLoopback}
}

// keysFile is the name of the key cache in the state directory. Like lastGoodFile, it has no extension.
const keysFile = "token-issuer-keys"

func (s *Server) openKeys() error {
	trusts, err := s.keysTLS()
	if err != nil {
		return err
	}
	s.keys = jwks.New(jwks.Config{
		Refresh: s.cfg.Keys.Refresh, TLS: trusts, Guard: s.cfg.fetchGuard(), Hosts: s.cfg.Keys.Hosts,
		File: filepath.Join(s.cfg.StateDir, keysFile), Logger: s.log,
		Changed: func() { s.pushLoop.noteKeys() }, // the first fetch begins after the push loop was created
	})
	return nil
}

// keysTLS returns the TLS configuration of the connections that fetch keys.
func (s *Server) keysTLS() (*tls.Config, error) {
	roots, err := trustedRoots(s.cfg.Keys.RootsFile)
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	s.cfg.TLSPolicy.Narrow(config)
	return config, err
}

// trustedRoots returns the system's root certificates and those in file. If file is "", it returns nil, which selects
// the system's root certificates.
func trustedRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the roots for fetching keys of token issuers (--jwks-root-cert): %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("roots for fetching keys of token issuers: %s contains no PEM certificate", file)
	}
	return pool, nil
}

// keyProblems returns a finding for each JWT rule whose keys the control plane could not fetch.
func keyProblems(s *snapshot.Snapshot, failures []jwks.Failure) []config.Problem {
	var out []config.Problem
	for _, f := range failures {
		message := fmt.Sprintf("the control plane cannot fetch the issuer's keys since %s, so proxies refuse all tokens of the issuer: %s", f.Since.UTC().Format(time.RFC3339), f.Reason)
		if f.Known {
			message = fmt.Sprintf("the control plane cannot fetch the issuer's keys since %s; proxies use the keys that were fetched before: %s", f.Since.UTC().Format(time.RFC3339), f.Reason)
		}
		for _, user := range s.KeyUsers(f.Address) {
			field := user.Field + ".jwksUri"
			out = append(out, config.Problem{
				Code: config.KeysNotFetched, Severity: config.Warning, Key: user.Key, At: user.PositionOf(field), Field: field, Value: f.Address,
				Message: message, Remedy: "make the URL reachable for the control plane, correct it, or set the keys in the field jwks",
			})
		}
	}
	return out
}
