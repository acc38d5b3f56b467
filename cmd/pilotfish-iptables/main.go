// Command pilotfish-iptables is `pilotfish-agent iptables` by itself: it steers a pod's traffic into its Envoy, and links
// nothing of the rest of the agent, which would cost an init container more time than its work does.
package main

import (
	"os"

	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
)

func main() { os.Exit(redirect.Main(redirect.Process{Env: os.LookupEnv})) }
