package agent

import (
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// newTokenServer creates the token exchange server and listens on its port. It returns nil if token exchange is
// disabled.
func (a *Agent) newTokenServer() (*sts.Server, error) {
	c := a.Config.TokenExchange
	if c == nil {
		return nil, nil
	}
	exchanger, err := c.Exchanger(a.Config.TLSPolicy)
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
