// Package meshapp has a test binary be what a mesh of its tests starts: the application of the workloads, and the guard.
package meshapp

import (
	"fmt"
	"os"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// Main is what the process is for when its first argument is "serve", "idle" or "guard"; it does not return then. serve is
// given the name of the instance.
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
