package controlplane_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestConnectionsBeyondTheMostAreRefusedAndWhoWatchesIsAnswered(t *testing.T) {
	p := start(t, controlplane.Config{Ports: freePorts, MaxConnections: 2})
	connect := func() (net.Conn, error) {
		conn, err := net.Dial("tcp", p.PlainAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
			_, err = conn.Read(make([]byte, 1)) // of the server's settings
		}
		return conn, err
	}
	first, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(); err == nil {
		t.Fatal("a third connection is served, of two that may be")
	}
	if _, page := p.get("/metrics"); !strings.Contains(page, `pilotfish_connections_refused_total{port="plain"} 1`) {
		t.Errorf("the refused connection is not counted:\n%s", page)
	}
	first.Close()
	testenv.Eventually(t, "the place of one that left is free", func() error {
		if _, err := connect(); err != nil {
			return fmt.Errorf("refused: %w", err)
		}
		return nil
	})
}
