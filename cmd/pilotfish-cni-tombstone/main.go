// Command pilotfish-cni-tombstone replaces the CNI plugin when it is uninstalled while sandboxes still refer to it. It
// is removed with the last of them.
package main

import (
	"os"

	"github.com/pilotfish-mesh/pilotfish/cni/tombstone"
)

func main() {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	os.Exit(tombstone.Run(tombstone.Call{
		Command: os.Getenv("CNI_COMMAND"), ContainerID: os.Getenv("CNI_CONTAINERID"),
		In: os.Stdin, Out: os.Stdout, Self: self, Results: tombstone.DefaultResults,
	}))
}
