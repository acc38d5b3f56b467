package testenv

import (
	"fmt"
	"net"
	"testing"
)

func TestAPortIsOneTestsAlone(t *testing.T) {
	var port int
	t.Run("has it", func(t *testing.T) {
		port = FreePort(t)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			t.Errorf("listening on the port: %v", err)
		} else {
			_ = l.Close() // the port has no listener now, and is still reserved
		}
		if _, err := reserve(port); err == nil {
			t.Errorf("FreePort returned %d twice", port)
		}
	})
	release, err := reserve(port)
	if err != nil {
		t.Fatalf("%d is still reserved after the test that reserved it: %v", port, err)
	}
	release()
}
