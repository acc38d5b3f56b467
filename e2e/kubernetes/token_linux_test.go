package kubernetes

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// pluginToken returns the token that the plugin sends to the API server, and the validity in its claims.
func (c *cluster) pluginToken(t *testing.T) (token string, from, until time.Time) {
	t.Helper()
	text, err := c.node.run("cat", "/run/istio-cni/istio-cni-kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(text, "token: ")
	token, _, _ = strings.Cut(after, "\n")
	var claims struct{ Iat, Exp int64 }
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		t.Fatalf("the kubeconfig has no token of an API server: %d bytes", len(text))
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(body, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return token, time.Unix(claims.Iat, 0), time.Unix(claims.Exp, 0)
}

// TestPluginsTokenIsRenewedBeforeItEnds runs for five minutes: an API server issues no token for less than ten.
func TestPluginsTokenIsRenewedBeforeItEnds(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t, "- {name: DAEMONSET_NAME, value: pilotfish-cni-node}",
		"- {name: DAEMONSET_NAME, value: pilotfish-cni-node}\n        - {name: PLUGIN_TOKEN_LIFE, value: 10m}")
	var first string
	var from, until time.Time
	c.waitFor(t, "a token of ten minutes", func() error {
		if first, from, until = c.pluginToken(t); until.Sub(from) != 10*time.Minute {
			return fmt.Errorf("it lives %v", until.Sub(from))
		}
		return nil
	})
	time.Sleep(time.Until(from.Add(290 * time.Second))) // what is waited for is a time
	var next string
	var later time.Time
	c.waitFor(t, "another token", func() error {
		if next, later, _ = c.pluginToken(t); next == first {
			return fmt.Errorf("it is that of %v", from)
		}
		return nil
	})
	if !later.Before(until) || later.Sub(from) < 290*time.Second {
		t.Errorf("a token from %v to %v was followed by one of %v", from, until, later)
	}
	c.withoutAgent(t)
	_, db := c.createRunning(t, pod("db"))
	name := c.create(t, attempt("attempt", db))
	if escaped := c.findEscaped(t, 1); len(escaped) > 0 {
		t.Errorf("pod %s went past its proxy", name)
	}
}
