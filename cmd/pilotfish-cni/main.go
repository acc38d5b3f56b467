// Command pilotfish-cni is the CNI plugin that redirects pods' traffic to their proxies before the pods start. It is
// chained after the plugin that creates the pods' network; see docs/cni.md.
package main

import (
	"os"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni"
)

func main() { os.Exit(cni.Main(time.Now())) }
