package xdsproxy

import (
	"context"
	"io"
	"os"
	"strings"
)

// runRelayProcess runs a relay until stdin is closed.
func runRelayProcess(spec string) {
	part := strings.Split(spec, ",")
	config := Config{Socket: part[0], Upstreams: []string{part[1]}, Server: Server{Plaintext: true}}
	if len(part) > 2 {
		// Without the maximum delay, changes in quick succession would postpone the save.
		config.LastGood = LastGood{Dirs: part[2:], saveDelay: testSaveDelay, maxSaveDelay: 5 * testSaveDelay}
	}
	relay, err := New(config)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	if err := relay.Run(ctx); err != nil {
		panic(err)
	}
	os.Exit(0)
}
