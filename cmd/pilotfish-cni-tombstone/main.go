// Command pilotfish-cni-tombstone replaces the CNI plugin's binary after an uninstallation, as long as pod sandboxes
// still refer to the plugin. It lets the container runtime remove these sandboxes, and deletes itself after the last of
// them was removed.
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
