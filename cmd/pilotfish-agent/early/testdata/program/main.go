// Command program is in the place of the agent, and in that of the small binary.
package main

import (
	"fmt"
	"os"

	_ "github.com/pilotfish-mesh/pilotfish/cmd/pilotfish-agent/early"
)

func main() { fmt.Printf("%q %s", os.Args, os.Getenv("TOLD")) }
