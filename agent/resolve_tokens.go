package agent

import (
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
)

// TokenExchangeConfig says how tokens are exchanged for what runs beside the agent.
type TokenExchangeConfig struct {
	// Address is on loopback.
	Address string
	// URL is an endpoint of RFC 8693, or googleExchange.
	URL string
	// RootFile holds the roots of the endpoint's certificate; empty for the system's.
	RootFile string
	// ClientID and the content of ClientSecretFile are how the agent proves itself there; empty for not at all.
	ClientID, ClientSecretFile string
	// GoogleAudience and GoogleAccount are Google's workload identity provider and service account.
	GoogleAudience, GoogleAccount string
	// Issuers and Audiences are those that a subject token must be of.
	Issuers, Audiences []string
	// OwnTokenFile holds the workload's token, which tells whose tokens may be exchanged where no issuers are given.
	OwnTokenFile string
}

// googleExchange stands for Google's endpoints, in place of a URL.
const googleExchange = "google"

// defaultTokenPort is the port that Istio's documents had for it.
const defaultTokenPort = 15463

// tokenExchange is on when there is somewhere to exchange tokens; --stsPort alone, which old pods have, is not enough.
func (r *resolver) tokenExchange() {
	flag := r.in.Flags.Given["stsPort"]
	port := r.in.Flags.TokenPort
	if flag && (port < 0 || port > math.MaxUint16) {
		r.fail("flag --stsPort: %d: write a port from 1 to 65535, or 0 for none", port)
		return
	}
	if r.env.vars["TOKEN_EXCHANGE_URL"] == "" {
		if flag && port != 0 {
			r.env.warn("--stsPort %d has no effect without TOKEN_EXCHANGE_URL", port)
		}
		return
	}
	c := &TokenExchangeConfig{URL: r.env.text("tokenExchange.url", "TOKEN_EXCHANGE_URL", "", sourceDefault)}
	source := sourceDefault
	if flag {
		source = "flag --stsPort"
	} else {
		port = defaultTokenPort
	}
	r.env.note("tokenExchange.port", port, source)
	c.RootFile = r.env.text("tokenExchange.rootFile", "TOKEN_EXCHANGE_ROOT_CA", "SYSTEM", sourceDefault)
	c.ClientID = r.env.text("tokenExchange.clientID", "TOKEN_EXCHANGE_CLIENT_ID", "", sourceDefault)
	c.ClientSecretFile = r.env.text("tokenExchange.clientSecretFile", "TOKEN_EXCHANGE_CLIENT_SECRET_FILE", "", sourceDefault)
	c.GoogleAudience = r.env.text("tokenExchange.googleAudience", "TOKEN_EXCHANGE_GOOGLE_AUDIENCE", "", sourceDefault)
	c.GoogleAccount = r.env.text("tokenExchange.googleServiceAccount", "TOKEN_EXCHANGE_GOOGLE_SERVICE_ACCOUNT", "", sourceDefault)
	c.Issuers = r.list("tokenExchange.issuers", "TOKEN_EXCHANGE_ISSUERS")
	c.Audiences = r.list("tokenExchange.audiences", "TOKEN_EXCHANGE_AUDIENCES")
	c.OwnTokenFile = r.config.ControlPlane.TokenFile
	if c.OwnTokenFile == "" && r.config.CredentialFetcher == fetchJWT && len(c.Issuers) == 0 {
		r.env.errs = append(r.env.errs, errors.New("environment TOKEN_EXCHANGE_ISSUERS: it is empty, and with JWT_POLICY none "+
			"there is no token of the workload's own to compare with: write the issuers whose tokens may be exchanged"))
	}
	if _, err := c.exchanger(r.config.TLSPolicy); err != nil {
		r.env.errs = append(r.env.errs, err)
	}
	if port == 0 {
		return
	}
	c.Address = net.JoinHostPort(r.loopback(), strconv.Itoa(port))
	r.config.TokenExchange = c
}

// loopback is where what is for the machine only listens.
func (r *resolver) loopback() string {
	if r.config.Bind.IsLoopback() {
		return r.config.Bind.String()
	}
	return "127.0.0.1"
}

// list is a variable's values, between commas.
func (r *resolver) list(name, variable string) []string {
	var list []string
	for value := range strings.SplitSeq(r.env.text(name, variable, "", sourceDefault), ",") {
		if value = strings.TrimSpace(value); value != "" {
			list = append(list, value)
		}
	}
	return list
}
