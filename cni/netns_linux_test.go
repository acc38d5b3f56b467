package cni

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestNodesNamespaceIsRefusedOnEveryThread(t *testing.T) {
	err := testns.New(t).Run(func() error {
		for _, path := range []string{"/proc/thread-self/ns/net", "/proc/1/ns/net"} {
			if f, err := openNetNS(path); err == nil {
				_ = f.Close()
				t.Errorf("%s was opened", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
