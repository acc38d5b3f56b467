package api

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// rowsAtOnce is how many rows wait for their documents at a time. They wait more than they work.
const rowsAtOnce = "4"

// The test binary is also the application of the meshes' workloads, and the guard of the meshes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
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
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil {
		_ = f.Value.Set(rowsAtOnce)
	}
	code := m.Run()
	if err := closeWorlds(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
