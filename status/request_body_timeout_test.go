package status

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
)

// Otherwise the server would respond to these requests only after their bodies, which are never sent.
func TestRequestsWithMissingBodyAreAnswered(t *testing.T) {
	spec := probed(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") })
	_, url := run(t, Config{
		Gatherer:  agentMetrics(),
		AppProbes: AppProbes{Paths: map[string]probe.Spec{"/app-health/web/livez": spec("/")}},
	})
	for _, request := range []string{
		"GET /healthz/ready", "GET /metrics", "POST /app-health/nobody/livez", "GET /app-health/web/livez", "POST /debug/pprof/",
		"GET /", "POST /drain",
	} {
		for _, length := range []string{"Content-Length: 1000", "Content-Length: 1000000000", "Transfer-Encoding: chunked"} {
			t.Run(request+" "+length, func(t *testing.T) {
				t.Parallel()
				requestWithoutBody(t, strings.TrimPrefix(url, "http://"), request+" HTTP/1.1\r\nHost: x\r\n"+length+"\r\n\r\n")
			})
		}
	}
}

func requestWithoutBody(t *testing.T, address, request string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, request)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Error(err)
	}
	if _, err := reader.ReadByte(); err != io.EOF {
		t.Errorf("the connection remains open: %v", err)
	}
}
