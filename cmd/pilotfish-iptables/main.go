// Command pilotfish-iptables redirects a pod's traffic to its Envoy. It is `pilotfish-agent iptables` as a separate binary
// for init containers: without the rest of the agent, it starts faster.
package main

import (
	"os"

	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
)

func main() { os.Exit(redirect.Main(redirect.Process{Env: os.LookupEnv})) }
