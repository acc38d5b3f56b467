// Command pilotfish-agent is the entrypoint of a sidecar or gateway container. It runs Envoy as a proxy of the mesh.
package main

import (
	"os"

	"github.com/pilotfish-mesh/pilotfish/agent/command"
	_ "github.com/pilotfish-mesh/pilotfish/cmd/pilotfish-agent/fastexec" // initialized before the agent's other packages
)

func main() { os.Exit(command.Main()) }
