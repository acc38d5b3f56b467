package xdsproxy

import (
	"io"
	"net"
	"os"
	"strings"
)

// bridgeEnv makes the test binary a process that forwards connections: "SOCKET:RELAY-SOCKET".
const bridgeEnv = "PILOTFISH_TEST_BRIDGE"

func runBridge(sockets string) {
	own, relay, _ := strings.Cut(sockets, ":")
	l, err := net.Listen("unix", own)
	if err != nil {
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer c.Close()
			u, err := net.Dial("unix", relay)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(u, c); _ = u.Close() }()
			_, _ = io.Copy(c, u)
		}()
	}
}
