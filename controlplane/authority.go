package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
)

// AuthorityConfig says how the certificate authority signs, and who proves to be whom to it. The zero value of a field is
// its default.
type AuthorityConfig struct {
	// PlugIn is a directory with an authority that somebody else made: ca-cert.pem, ca-key.pem, root-cert.pem and
	// cert-chain.pem, as Istio has them. Watched.
	PlugIn string
	// TTL is the life of certificates that are asked for without one, MaxTTL the longest.
	TTL, MaxTTL time.Duration
	// Overlap is how long a new root is known before it signs; RotateBefore how long before a root's end it is replaced,
	// and negative for never.
	Overlap, RotateBefore time.Duration
	// AuditFile gets a line for each certificate that is issued or refused; empty: only the usual log is written.
	AuditFile string
	// Issuer is an issuer of JWTs that prove a service account, IssuerKeys the file or address of its keys (default: by its
	// discovery document), IssuerAudience what its tokens are for (default istio-ca).
	Issuer, IssuerKeys, IssuerAudience string
}

// authorityInterval is how often the authority's files are looked at.
const authorityInterval = 2 * time.Second

// issuerKeysFile keeps the keys of that issuer in the state directory.
const issuerKeysFile = "trusted-issuer-keys"

func (s *Server) authorityOptions(domain string) (ca.Options, error) {
	c := s.cfg.Authority
	options := ca.Options{
		TrustDomain: domain, Logger: s.log, Registerer: s.registry, PlugIn: c.PlugIn, TTL: c.TTL, MaxTTL: c.MaxTTL,
		Overlap: c.Overlap, RotateBefore: c.RotateBefore,
	}
	if c.Issuer != "" {
		issuer, err := s.tokenIssuer(c)
		if err != nil {
			return options, err
		}
		options.Issuers = []ca.TokenIssuer{issuer}
	} else if c.IssuerKeys != "" || c.IssuerAudience != "" {
		return options, errors.New("keys or an audience of an issuer of tokens are given, and no issuer: say whose they are")
	}
	if c.AuditFile != "" {
		var err error
		if options.Audit, s.closeAudit, err = ca.AuditFile(c.AuditFile); err != nil {
			return options, err
		}
	}
	return options, nil
}

func (s *Server) tokenIssuer(c AuthorityConfig) (ca.TokenIssuer, error) {
	issuer := ca.TokenIssuer{Issuer: c.Issuer}
	if c.IssuerAudience != "" {
		issuer.Audiences = []string{c.IssuerAudience}
	}
	at := c.IssuerKeys
	if at != "" && !strings.Contains(at, "://") {
		issuer.Keys = func() (string, error) { return keysOf(at) }
		return issuer, nil
	}
	if at == "" {
		at = strings.TrimSuffix(c.Issuer, "/") + config.DiscoveryPath
	}
	trusts, err := s.keysTLS()
	if err != nil {
		return issuer, err
	}
	s.issuerKeys = jwks.New(jwks.Config{Refresh: s.cfg.Keys.Refresh, TLS: trusts, File: filepath.Join(s.cfg.StateDir, issuerKeysFile), Logger: s.log})
	s.issuerKeys.Want([]string{at})
	issuer.Keys = func() (string, error) {
		if set, ok := s.issuerKeys.Sets()[at]; ok {
			return set, nil
		}
		return "", fmt.Errorf("its keys could not be fetched from %s yet", at)
	}
	return issuer, nil
}

// keysOf reads keys from a file, each time: it may have been replaced.
func keysOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, config.MaxKeySet))
	if err != nil {
		return "", err
	}
	keys, err := config.PublicKeys(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return string(keys), nil
}
