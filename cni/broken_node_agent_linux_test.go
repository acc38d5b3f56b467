package cni

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// badAgent starts a node agent that calls answer for each connection. It closes the connections after the plugin has exited.
func (h *testNode) badAgent(answer func(net.Conn)) {
	h.t.Helper()
	l, err := net.Listen("unix", filepath.Join(h.dir, agentapi.SocketName))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				go answer(c)
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
}

func respondBody(body string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
}

// repeatPiece returns a handler that sends begin, and then piece repeatedly.
func repeatPiece(begin, piece string, pause time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, begin)
		for err == nil {
			time.Sleep(pause)
			_, err = io.WriteString(c, piece)
		}
	}
}

var badAgents = map[string]func(net.Conn){
	"hangs":                   func(net.Conn) {},
	"hangs up":                func(c net.Conn) { _ = c.Close() },
	"speaks another protocol": func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-x\r\n\r\n") },
	"gives no JSON":           respondBody("<html>"),
	"gives nothing":           respondBody(""),
	"gives null":              respondBody("null"),
	"gives no pod":            respondBody("{}"),
	"gives a list":            respondBody("[]"),
	"gives another pod":       respondBody(`{"metadata":{"name":"other","namespace":"shop","uid":"uid-web"}}`),
	"gives the pod before":    respondBody(`{"metadata":{"name":"web","namespace":"shop","uid":"before"}}`),
	"sends elsewhere": func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 307 x\r\nLocation: http://agent/other\r\nContent-Length: 0\r\n\r\n")
	},
	"only announces":           func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\n") },
	"has no end of headers":    repeatPiece("HTTP/1.1 200 OK\r\n", "A: "+strings.Repeat("x", 1000)+"\r\n", 0),
	"has no end":               repeatPiece("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "3e8\r\n"+strings.Repeat(" ", 1000)+"\r\n", 0),
	"has no end of a line":     repeatPiece("HTTP/1.1 200 OK\r\nA: ", strings.Repeat("x", 1000), 0),
	"gives a letter at a time": repeatPiece("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", " ", 10*time.Millisecond),
	"announces more than it has": func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n{}")
	},
}

// With a malfunctioning node agent and no API server, the plugin cannot look up pods, so ADD fails.
func TestADDFailsIfTheNodeAgentIsBroken(t *testing.T) {
	pod := meshPod("web")
	ns := testns.New(t)
	for name, answer := range badAgents {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel() // the test mostly waits for timeouts
			h := newTestNode(t)
			h.agentTimeout = "200ms"
			h.badAgent(answer)
			got := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0"))
			if got.err == nil || got.Code != types.ErrTryAgainLater || !strings.Contains(got.Msg, "might not be redirected") {
				t.Errorf("ADD: %v: %s", got.err, got.out)
			}
			if got := h.call("DEL", pod, netnsPath(ns), h.withPrevious("1.0.0")); got.err != nil {
				t.Errorf("DEL: %v: %s", got.err, got.out)
			}
		})
	}
}

func TestADDQueriesTheAPIServerWhileTheNodeAgentHangs(t *testing.T) {
	pod := meshPod("web")
	h := newTestNode(t)
	h.badAgent(badAgents["hangs"])
	h.apiServer(0, pod)
	ns := testns.New(t)
	if answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0")); answer.err != nil || inForce(t, ns) == nil {
		t.Errorf("%v: %s", answer.err, answer.out)
	}
}
