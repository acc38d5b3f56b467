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

// KeyFetching configures the fetching of token issuers' keys, from the URLs in RequestAuthentications.
type KeyFetching struct {
	// Refresh is the refresh interval; default 20 minutes.
	Refresh time.Duration
	// RootsFile is a PEM file of roots that are trusted in addition to the system's.
	RootsFile string
	// ByProxy lets proxies fetch keys whose URL is that of a service of the mesh.
	ByProxy bool
	// Blocked are networks from which no keys are fetched, in addition to link-local and metadata addresses.
	Blocked []netip.Prefix
	// AllowLoopback allows loopback addresses even if the control plane serves other machines. A control plane that
	// listens on loopback always allows them.
	AllowLoopback bool
}

// fetchGuard returns the guard that decides from which addresses the control plane may fetch keys whose URLs are in
// documents.
func (c Config) fetchGuard() fetchguard.Guard {
	return fetchguard.Guard{Blocked: c.Keys.Blocked, NoLoopback: !isLoopback(c.Address) && !c.Keys.AllowLoopback}
}

// keysFile is the name of the key cache in the state directory. It has no extension, for the same reason as
// lastGoodFile.
const keysFile = "token-issuer-keys"

func (s *Server) openKeys() error {
	trusts, err := s.keysTLS()
	if err != nil {
		return err
	}
	s.keys = jwks.New(jwks.Config{
		Refresh: s.cfg.Keys.Refresh, TLS: trusts, Guard: s.cfg.fetchGuard(),
		File: filepath.Join(s.cfg.StateDir, keysFile), Logger: s.log,
		Changed: func() { s.pushLoop.noteKeys() }, // the push loop exists before the first fetch
	})
	return nil
}

// keysTLS returns the TLS configuration for fetching keys.
func (s *Server) keysTLS() (*tls.Config, error) {
	roots, err := trustedRoots(s.cfg.Keys.RootsFile)
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	s.cfg.TLSPolicy.Narrow(config)
	return config, err
}

// trustedRoots returns the system's roots and those of the file; nil means only the system's.
func trustedRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("roots for fetching keys of token issuers: %w", err)
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

// keyProblems returns a finding for each rule whose keys could not be fetched.
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
