package xdsproxy

import (
	"context"
	"io"
	"os"
	"strings"
)

// alone runs until its input ends.
func alone(spec string) {
	socket, address, _ := strings.Cut(spec, ",")
	relay, err := New(Config{Socket: socket, Upstreams: []string{address}, Server: Server{Plaintext: true}})
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
