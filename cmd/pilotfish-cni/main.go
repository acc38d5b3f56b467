// Command pilotfish-cni is the CNI plugin that redirects pods' traffic into their proxies before the pods start. It is
// chained behind the plugin that makes the pods' network; see docs/cni.md.
package main

import (
	"os"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni"
)

func main() { os.Exit(cni.Main(time.Now())) }
