package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// TokenExchange configures the server on which the application exchanges tokens (RFC 8693).
type TokenExchange struct {
	// Address is the listen address as host:port, on loopback.
	Address string
	// URL is the RFC 8693 endpoint that exchanges the tokens, or the constant googleExchange.
	URL string
	// RootFile contains the root certificates that verify the endpoint; SYSTEM selects the system's roots.
	RootFile string
	// ClientID and ClientSecretFile authenticate the agent to the endpoint; empty for no authentication.
	ClientID, ClientSecretFile string
	// GoogleAudience is the workload identity provider and GoogleAccount the service account. Both apply only to
	// googleExchange.
	GoogleAudience, GoogleAccount string
	// Issuers and Audiences are the accepted issuers and audiences of the tokens that the application exchanges.
	Issuers, Audiences []string
	// OwnTokenFile contains the workload's token. If Issuers is empty, only tokens of that token's issuer are accepted.
	OwnTokenFile string
}

// googleExchange is the value of TOKEN_EXCHANGE_URL that selects Google's endpoints.
const googleExchange = "google"

// defaultTokenPort is the port of the token exchange in Istio's documentation.
const defaultTokenPort = 15463

// resolveTokenExchange enables token exchange if TOKEN_EXCHANGE_URL is set. The flag --stsPort alone does not enable
// it, because old pod templates of Istio contain that flag.
func (r *resolver) resolveTokenExchange() {
	flag := r.in.Flags.Changed["stsPort"]
	port := r.in.Flags.TokenPort
	if flag && (port < 0 || port > math.MaxUint16) {
		r.env.warn("flag --stsPort: %d: write a port from 1 to 65535, or 0 for none; the value has no effect", port)
		flag = false
	}
	if r.env.vars["TOKEN_EXCHANGE_URL"] == "" {
		if flag && port != 0 {
			r.env.warn("--stsPort %d has no effect without TOKEN_EXCHANGE_URL", port)
		}
		return
	}
	c := &TokenExchange{URL: r.env.text("tokenExchange.url", "TOKEN_EXCHANGE_URL", "", sourceDefault)}
	source := sourceDefault
	if flag {
		source = "flag --stsPort"
	} else {
		port = defaultTokenPort
	}
	r.env.addSetting("tokenExchange.port", port, source)
	c.RootFile = r.env.text("tokenExchange.rootFile", "TOKEN_EXCHANGE_ROOT_CA", "SYSTEM", sourceDefault)
	c.ClientID = r.env.text("tokenExchange.clientID", "TOKEN_EXCHANGE_CLIENT_ID", "", sourceDefault)
	c.ClientSecretFile = r.env.text("tokenExchange.clientSecretFile", "TOKEN_EXCHANGE_CLIENT_SECRET_FILE", "", sourceDefault)
	c.GoogleAudience = r.env.text("tokenExchange.googleAudience", "TOKEN_EXCHANGE_GOOGLE_AUDIENCE", "", sourceDefault)
	c.GoogleAccount = r.env.text("tokenExchange.googleServiceAccount", "TOKEN_EXCHANGE_GOOGLE_SERVICE_ACCOUNT", "", sourceDefault)
	c.Issuers = r.parseList("tokenExchange.issuers", "TOKEN_EXCHANGE_ISSUERS")
	c.Audiences = r.parseList("tokenExchange.audiences", "TOKEN_EXCHANGE_AUDIENCES")
	c.OwnTokenFile = r.config.ControlPlane.TokenFile
	if c.OwnTokenFile == "" && r.config.CredentialFetcher == fetchJWT && len(c.Issuers) == 0 {
		r.env.errs = append(r.env.errs, errors.New("environment TOKEN_EXCHANGE_ISSUERS is empty: with JWT_POLICY none, "+
			"the workload has no token whose issuer would be the default; write the issuers whose tokens may be exchanged"))
	}
	if _, err := c.Exchanger(r.config.TLSPolicy); err != nil {
		r.env.errs = append(r.env.errs, err)
	}
	if port == 0 {
		return
	}
	c.Address = net.JoinHostPort(r.loopbackHost(), strconv.Itoa(port))
	r.config.TokenExchange = c
}

// loopbackHost returns the loopback address for ports that only processes of this machine may use.
func (r *resolver) loopbackHost() string {
	if r.config.Bind.IsLoopback() {
		return r.config.Bind.String()
	}
	return "127.0.0.1"
}

// parseList returns the comma-separated values of a variable.
func (r *resolver) parseList(name, variable string) []string {
	var list []string
	for value := range strings.SplitSeq(r.env.text(name, variable, "", sourceDefault), ",") {
		if value = strings.TrimSpace(value); value != "" {
			list = append(list, value)
		}
	}
	return list
}

// Exchanger returns the client of the token endpoint.
func (c *TokenExchange) Exchanger(policy tlspolicy.Policy) (sts.Exchanger, error) {
	if c.URL == googleExchange {
		g, err := sts.NewGoogle(sts.GoogleConfig{Audience: c.GoogleAudience, ServiceAccount: c.GoogleAccount, RootFile: c.RootFile, Policy: policy})
		if err != nil {
			return nil, fmt.Errorf("TOKEN_EXCHANGE_GOOGLE_AUDIENCE: %w", err)
		}
		return g, nil
	}
	endpoint := sts.EndpointConfig{URL: c.URL, RootFile: c.RootFile, Policy: policy, ClientID: c.ClientID}
	if c.ClientSecretFile != "" {
		endpoint.ClientSecret = sts.FileFetcher{Path: c.ClientSecretFile}
	}
	e, err := sts.NewEndpoint(endpoint)
	if err != nil {
		return nil, fmt.Errorf("TOKEN_EXCHANGE_URL: %w", err)
	}
	return e, nil
}
