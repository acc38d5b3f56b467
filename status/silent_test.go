package status

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestUnusedConnectionDoesNotDelayShutdown(t *testing.T) {
	s := &newConns{}
	accepted := make(chan struct{})
	server := &http.Server{ConnState: func(c net.Conn, state http.ConnState) {
		s.onState(c, state)
		if state == http.StateNew {
			close(accepted)
		}
	}}
	l, err := net.Listen("tcp", "127.102.40.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-accepted
	s.close()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("reading from the connection: %v, want its end", err)
	}
	testenv.Eventually(t, "the server removes the connection", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return server.Shutdown(ctx)
	})
	<-served
}
