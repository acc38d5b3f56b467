package mesh

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"
)

func TestDatagramsThatLeaveTheMeshAreRefused(t *testing.T) {
	needNamespaces(t)
	claimed, err := Captured{}.Claim(testTopology(t, oneApp), Resources{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p := claimed.(*capturedPlacement)
	defer p.Release()
	at, err := p.makePlace(p.instances[0])
	if err != nil {
		t.Fatal(err)
	}
	// The last one is what a service's own address is.
	for _, to := range []string{"192.0.2.9:7000", "[2001:db8::9]:7000", "240.1.2.3:7000"} {
		conn, err := at.space.Dial(context.Background(), "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Write([]byte("anybody?"))
		if err == nil {
			_, err = conn.Read(make([]byte, 10))
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a datagram to %s: %v", to, err)
		}
		_ = conn.Close()
	}
}
