package agent

import (
	"context"
	"fmt"

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
	switch {
	case r.config.CredentialFetcher != fetchJWT, policy == "none":
		return ""
	case policy == "first-party-jwt":
		return firstPartyToken
	}
	return thirdPartyToken
}

// newCredential gives tokens that are in no file; nil when they are in one, or there are none.
func (a *Agent) newCredential() (func(context.Context) (string, error), error) {
	if a.Config.CredentialFetcher != fetchGCE {
		return nil, nil
	}
	fetcher, err := sts.NewMetadataFetcher(sts.MetadataConfig{Audience: a.Config.Identity.TrustDomain})
	if err != nil {
		return nil, fmt.Errorf("CREDENTIAL_FETCHER_TYPE=%s: %w", fetchGCE, err)
	}
	return func(ctx context.Context) (string, error) {
		token, err := fetcher.Fetch(ctx)
		return string(token), err
	}, nil
}
