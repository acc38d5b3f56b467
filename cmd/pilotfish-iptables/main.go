// Command pilotfish-iptables is `pilotfish-agent iptables` as a separate binary: it redirects a pod's traffic to its
// Envoy. It does not link the rest of the agent, whose start would cost an init container more time than the command.
package main

import (
	"os"

	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
)

func main() { os.Exit(redirect.Main(redirect.Process{Env: os.LookupEnv})) }
