package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/pilotfish-mesh/pilotfish/sts"
)

// Kinds of credentials for the control plane and the authority, by CREDENTIAL_FETCHER_TYPE.
const (
	fetchJWT = "JWT"
	fetchGCE = "GoogleComputeEngine"
)

// tokenFile is where the workload's token is; empty where there is none, or none in a file.
func (r *resolver) tokenFile() string {
	policy := r.env.choice("jwtPolicy", "JWT_POLICY", "third-party-jwt", "third-party-jwt", "first-party-jwt", "none")
	r.config.CredentialFetcher = r.env.choice("credentialFetcher", "CREDENTIAL_FETCHER_TYPE", fetchJWT, fetchJWT, fetchGCE)
	r.config.MetadataServer = parsed(r.env, "metadataServer", "GCE_METADATA_HOST", sts.MetadataHost, "write host or host:port, as "+sts.MetadataHost, parseHost)
	switch {
	case r.config.CredentialFetcher != fetchJWT, policy == "none":
		return ""
	case policy == "first-party-jwt":
		return firstPartyToken
	}
	return thirdPartyToken
}

// parseHost takes what is a host, with or without a port, and nothing else of a URL.
func parseHost(text string) (string, error) {
	u, err := url.Parse("http://" + text)
	if err == nil && (u.Hostname() == "" || u.Host != text) {
		err = errors.New("not a host")
	}
	return text, err
}

// newCredential gives tokens that are in no file; nil when they are in one, or there are none.
func (a *Agent) newCredential() (sts.Fetcher, error) {
	if a.Config.CredentialFetcher != fetchGCE {
		return nil, nil
	}
	fetcher, err := sts.NewMetadataFetcher(sts.MetadataConfig{
		Audience: a.Config.Identity.TrustDomain, URL: sts.MetadataURL(a.Config.MetadataServer),
	})
	if err != nil {
		return nil, fmt.Errorf("CREDENTIAL_FETCHER_TYPE=%s: %w", fetchGCE, err)
	}
	return fetcher, nil
}

// token gives the workload's token where that is in no file; nil where it is.
func (a *Agent) token() func(context.Context) (string, error) {
	if a.credential == nil {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		token, err := a.credential.Fetch(ctx)
		return string(token), err
	}
}
