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

// AuthorityConfig configures the certificate authority and how clients authenticate to it. Zero values select the
// defaults.
type AuthorityConfig struct {
	// PlugIn is the directory of an externally created CA, in Istio's format: ca-cert.pem, ca-key.pem, root-cert.pem
	// and cert-chain.pem. The control plane watches it.
	PlugIn string
	// Store stores the authority's roots and token key. Default: a directory in the state directory.
	Store ca.Store
	// Material is an externally created CA that is not in a directory. It replaces PlugIn.
	Material ca.PlugIn
	// Tokens verifies tokens of other issuers than Issuer, in addition to the authority's own tokens; nil refuses them.
	Tokens ca.TokenVerifier
	// TTL is the lifetime of a certificate if the request specifies none. MaxTTL is the maximum lifetime.
	TTL, MaxTTL time.Duration
	// Overlap is how long a new root is distributed before it signs certificates. RotateBefore is how long before its
	// expiry a root is replaced. A negative RotateBefore disables the automatic rotation.
	Overlap, RotateBefore time.Duration
	// AuditFile is the path of the audit log, which contains a line for each issued or refused certificate (see
	// ca.AuditFile). If it is empty, there is no audit log.
	AuditFile string
	// DenyList is the path of a YAML file with the service accounts and certificate serial numbers that the control
	// plane refuses. The control plane watches the file. If the path is empty, nothing is refused.
	DenyList string
	// Issuer is an external issuer whose JWTs prove service accounts, in addition to the authority's own tokens.
	// IssuerKeys is the file or URL of the issuer's keys (default: the URL in its discovery document). IssuerAudience
	// is the audience of the JWTs (default istio-ca).
	Issuer, IssuerKeys, IssuerAudience string
}

// authorityInterval is the interval at which the files of the certificate authority are polled.
const authorityInterval = 2 * time.Second

// storeInterval is the interval at which an AuthorityConfig.Store is polled.
const storeInterval = 10 * time.Second

// interval returns the interval at which the authority's material is polled.
func (c AuthorityConfig) interval() time.Duration {
	if c.Store != nil {
		return storeInterval
	}
	return authorityInterval
}

// openAuthority opens the authority in the configured store.
func (s *Server) openAuthority(options ca.Options) (*ca.Authority, error) {
	if store := s.cfg.Authority.Store; store != nil {
		return ca.Open(store, options)
	}
	return ca.Load(s.cfg.StateDir, options)
}

// issuerKeysFile, in the state directory, caches the keys of the external issuer.
const issuerKeysFile = "trusted-issuer-keys"

func (s *Server) authorityOptions(domain string) (ca.Options, error) {
	c := s.cfg.Authority
	options := ca.Options{
		TrustDomain: domain, Logger: s.log, Registerer: s.registry, TTL: c.TTL, MaxTTL: c.MaxTTL,
		Overlap: c.Overlap, RotateBefore: c.RotateBefore, TLSPolicy: s.cfg.TLSPolicy,
		PlugIn: c.Material, Tokens: c.Tokens,
	}
	if c.PlugIn != "" && c.Material == nil {
		options.PlugIn = ca.PlugInDir(c.PlugIn)
	}
	if c.Issuer != "" {
		issuer, err := s.tokenIssuer(c)
		if err != nil {
			return options, err
		}
		options.Issuers = []ca.TokenIssuer{issuer}
	} else if c.IssuerKeys != "" || c.IssuerAudience != "" {
		return options, errors.New("--jwt-issuer-keys and --jwt-audience require --jwt-issuer")
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
		issuer.Keys = func() (string, error) { return readKeys(at) }
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
	s.issuerKeys.SetAddresses([]string{at})
	issuer.Keys = func() (string, error) {
		if set, ok := s.issuerKeys.Sets()[at]; ok {
			return set, nil
		}
		return "", fmt.Errorf("the control plane has not fetched the issuer's keys from %s yet", at)
	}
	return issuer, nil
}

// readKeys reads the public keys of a token issuer from the file path. It is called each time the keys are used,
// because users may replace the file.
func readKeys(path string) (string, error) {
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
		return "", fmt.Errorf("reading the keys in %s: %w", path, err)
	}
	return string(keys), nil
}
