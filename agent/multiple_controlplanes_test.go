package agent

import (
	"fmt"
	"testing"
)

// Both certificate and configuration are received from the address that answers.
func TestProxyStartsWithOneOfSeveralControlPlanes(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.152.5.1")
	s.env = append(s.env, fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s, %s", concurrency: 1, terminationDrainDuration: 1s}`, freeAddress(t), s.cp.address))
	s.startReady(t)
	c, _, err := dialProxy(s.address)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
