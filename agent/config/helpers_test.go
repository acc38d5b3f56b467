package config

import "testing"

func resolve(t *testing.T, in Inputs) *Config {
	t.Helper()
	c, err := Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func env(pairs ...string) Inputs {
	return Inputs{Env: append([]string{"INSTANCE_IP=10.1.1.1"}, pairs...)}
}
