package api

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/e2e/meshapp"
)

// rowsAtOnce is how many rows wait for their documents at a time. They wait more than they work.
const rowsAtOnce = "4"

// The test binary is also the application of the meshes' workloads, and the guard of the meshes.
func TestMain(m *testing.M) {
	meshapp.Main(serve)
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil {
		_ = f.Value.Set(rowsAtOnce)
	}
	code := m.Run()
	if err := closeMeshes(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
