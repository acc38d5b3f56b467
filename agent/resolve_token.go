package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/pilotfish-mesh/pilotfish/sts"
)

// Values of CREDENTIAL_FETCHER_TYPE.
const (
	fetchJWT = "JWT"
	fetchGCE = "GoogleComputeEngine"
)

// resolveTokenFile returns the path of the workload's token; empty if there is none, or none in a file.
func (r *resolver) resolveTokenFile() string {
	policy := r.env.choice("jwtPolicy", "JWT_POLICY", "third-party-jwt", "third-party-jwt", "first-party-jwt", "none")
	r.config.CredentialFetcher = r.env.choice("credentialFetcher", "CREDENTIAL_FETCHER_TYPE", fetchJWT, fetchJWT, fetchGCE)
	r.config.MetadataServer = parseVariable(r.env, "metadataServer", "GCE_METADATA_HOST", sts.MetadataHost, "write host or host:port, as "+sts.MetadataHost, parseHost)
	switch {
	case r.config.CredentialFetcher != fetchJWT, policy == "none":
		return ""
	case policy == "first-party-jwt":
		return firstPartyToken
	}
	return thirdPartyToken
}

// parseHost accepts a host with an optional port, and nothing else of a URL.
func parseHost(text string) (string, error) {
	u, err := url.Parse("http://" + text)
	if err == nil && (u.Hostname() == "" || u.Host != text) {
		err = errors.New("not a host")
	}
	return text, err
}

// newCredential returns the fetcher of tokens that are not in a file; nil if there are none.
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

// token returns a function that fetches the workload's token; nil if the token is in a file.
func (a *Agent) token() func(context.Context) (string, error) {
	if a.credential == nil {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		token, err := a.credential.Fetch(ctx)
		return string(token), err
	}
}
