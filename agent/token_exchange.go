package agent

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// newTokenServer creates the token exchange server and listens on its port. It returns nil if token exchange is
// disabled.
func (a *Agent) newTokenServer() (*sts.Server, error) {
	c := a.Config.TokenExchange
	if c == nil {
		return nil, nil
	}
	exchanger, err := c.exchanger(a.Config.TLSPolicy)
	if err != nil {
		return nil, err
	}
	config := sts.Config{
		Address:   c.Address,
		Exchanger: exchanger,
		Check:     sts.Check{Issuers: c.Issuers, Audiences: c.Audiences},
		Logger:    a.Logger.With("part", "tokens"),
		Metrics:   a.metrics,
	}
	switch {
	case a.credential != nil:
		config.Own = a.credential
	case c.OwnTokenFile != "":
		config.Own = sts.FileFetcher{Path: c.OwnTokenFile}
	}
	return sts.New(config)
}

func (c *TokenExchangeConfig) exchanger(policy tlspolicy.Policy) (sts.Exchanger, error) {
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
