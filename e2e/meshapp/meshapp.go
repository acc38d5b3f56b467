// Package meshapp has a test binary be what a mesh of its tests starts: the application of the workloads, and the guard.
package meshapp

import (
	"fmt"
	"os"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// Main runs the process's role if its first argument is "serve", "idle" or "guard", and does not return then. It calls
// serve with the name of the instance.
func Main(serve func(name string) error) {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "serve":
		fmt.Fprintln(os.Stderr, serve(os.Getenv("PILOTFISH_NAME")))
		os.Exit(1)
	case "idle":
		select {}
	case "guard":
		c := mesh.NewGuardCommand()
		c.SetArgs(os.Args[2:])
		if err := c.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}
