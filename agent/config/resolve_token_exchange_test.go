package config

import (
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestTokenExchangeNeedsURL(t *testing.T) {
	testenv.InDir(t, nil)
	given := func(port int, vars ...string) Inputs {
		in := env(vars...)
		in.Flags.TokenPort, in.Flags.Changed = port, map[string]bool{"stsPort": true}
		return in
	}
	if c := resolve(t, env()); c.TokenExchange != nil {
		t.Error("token exchange is enabled by default")
	}
	if c := resolve(t, given(15463)); c.TokenExchange != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "TOKEN_EXCHANGE_URL") {
		t.Errorf("--stsPort without a URL: %+v, warnings %q", c.TokenExchange, c.Warnings)
	}
	if c := resolve(t, given(0, exchangeEnabled...)); c.TokenExchange != nil {
		t.Error("token exchange is enabled with port 0")
	}
	if c := resolve(t, env(exchangeEnabled...)); c.TokenExchange == nil || c.TokenExchange.Address != "127.0.0.1:15463" {
		t.Errorf("with an endpoint: %+v", c.TokenExchange)
	}
	if c := resolve(t, given(70000)); c.TokenExchange != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "--stsPort: 70000") {
		t.Errorf("an invalid port: %+v, warnings %q", c.TokenExchange, c.Warnings)
	}
	for want, in := range map[string]Inputs{
		"TOKEN_EXCHANGE_ISSUERS": env(append(exchangeEnabled, "JWT_POLICY=none")...),
		"identitynamespace:":     env("TOKEN_EXCHANGE_URL=google"),
	} {
		if _, err := Resolve(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
