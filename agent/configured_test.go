package agent

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
)

func resolve(t *testing.T, in config.Inputs) *config.Config {
	t.Helper()
	c, err := config.Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func env(pairs ...string) config.Inputs {
	return config.Inputs{Env: append([]string{"INSTANCE_IP=10.1.1.1"}, pairs...)}
}
