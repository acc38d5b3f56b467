package traffic

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/e2e/meshapp"
)

const (
	portHTTP = 8080
	portTCP  = 9000
)

// The test binary is also the application of the mesh's workloads, and the guard of the mesh.
func TestMain(m *testing.M) {
	meshapp.Main(serve)
	os.Exit(m.Run())
}

// serve answers HTTP requests with the workload's name, and echoes lines over TCP with that name as a prefix.
func serve(name string) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", portTCP))
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go echo(conn, name)
		}
	}()
	return http.ListenAndServe(fmt.Sprintf(":%d", portHTTP), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, name)
	}))
}

func echo(conn net.Conn, name string) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if _, err := fmt.Fprintln(conn, name, lines.Text()); err != nil {
			return
		}
	}
}
