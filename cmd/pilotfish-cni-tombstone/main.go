// Command pilotfish-cni-tombstone takes the place of the CNI plugin when that is uninstalled while sandboxes name it; it
// goes with the last of them.
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
