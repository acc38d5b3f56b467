package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// KeyFetching says how the keys of token issuers are fetched that RequestAuthentications refer to by address.
type KeyFetching struct {
	// Refresh is how often; default 20 minutes.
	Refresh time.Duration
	// RootsFile has roots in PEM that are trusted beside the system's.
	RootsFile string
	// ByProxy lets proxies fetch the keys whose address is one of a service of the mesh.
	ByProxy bool
}

// keysFile is in the state directory. Its name has no ending, as that of lastGoodFile.
const keysFile = "token-issuer-keys"

func (s *Server) openKeys() error {
	trusts, err := s.keysTLS()
	if err != nil {
		return err
	}
	s.keys = jwks.New(jwks.Config{
		Refresh: s.cfg.Keys.Refresh, TLS: trusts,
		File: filepath.Join(s.cfg.StateDir, keysFile), Logger: s.log,
		Changed: func() { s.feed.noteKeys() }, // the feed is there before anything is fetched
	})
	return nil
}

// keysTLS is whom keys are taken from.
func (s *Server) keysTLS() (*tls.Config, error) {
	roots, err := trustedRoots(s.cfg.Keys.RootsFile)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, err
}

// trustedRoots are the system's and those of the file; nil is the system's alone.
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
		return nil, fmt.Errorf("roots for fetching keys of token issuers: %s has no certificate in PEM", file)
	}
	return pool, nil
}

// keyProblems tells of keys that could not be fetched at the rules that need them.
func keyProblems(s *snapshot.Snapshot, failures []jwks.Failure) []config.Problem {
	var out []config.Problem
	for _, f := range failures {
		message := fmt.Sprintf("the issuer's keys cannot be fetched since %s, and all its tokens are refused: %s", f.Since.UTC().Format(time.RFC3339), f.Reason)
		if f.Known {
			message = fmt.Sprintf("the issuer's keys cannot be fetched since %s; those from before are in use: %s", f.Since.UTC().Format(time.RFC3339), f.Reason)
		}
		for _, user := range s.KeyUsers(f.Address) {
			field := user.Field + ".jwksUri"
			out = append(out, config.Problem{
				Code: config.KeysNotFetched, Severity: config.Warning, Key: user.Key, At: user.Place(field), Field: field, Value: f.Address,
				Message: message, Remedy: "make the address reachable for the control plane, correct it, or give the keys in jwks",
			})
		}
	}
	return out
}
