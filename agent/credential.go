package agent

import (
	"context"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// newCredential returns the fetcher of the workload's token; nil if the token is in a file.
func (a *Agent) newCredential() (sts.Fetcher, error) {
	if a.Config.CredentialFetcher != config.FetchGCE {
		return nil, nil
	}
	fetcher, err := sts.NewMetadataFetcher(sts.MetadataConfig{
		Audience: a.Config.Identity.TrustDomain, URL: sts.MetadataURL(a.Config.MetadataServer),
	})
	if err != nil {
		return nil, fmt.Errorf("CREDENTIAL_FETCHER_TYPE=%s: %w", config.FetchGCE, err)
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
