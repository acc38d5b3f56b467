package xdsproxy

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// openFromOtherProcess opens a stream whose client is another process, until end is called.
func openFromOtherProcess(t *testing.T, r *Relay) (s sotwClient, end func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "bridge")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), bridgeEnv+"="+socket+":"+r.config.Socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(end)
	testenv.Eventually(t, "the bridge listens", func() error {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if s, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, end
}

func TestOlderEnvoyIsServedAfterNewerOneEnds(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	log := &testenv.Buffer{}
	relay := start(t, Config{
		Upstreams: []string{address}, Server: Server{Plaintext: true}, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	older := sotwStream(t, relay)
	send(t, older, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, older)

	newer, end := openFromOtherProcess(t, relay)
	send(t, newer, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, newer)
	if _, err := older.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the older Envoy's stream ended with %v, want Aborted", err)
	}

	older = sotwStream(t, relay)
	send(t, older, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	testenv.Eventually(t, "the older Envoy's stream waits", func() error {
		if !strings.Contains(log.String(), "waits") {
			return errors.New(log.String())
		}
		return nil
	})
	send(t, newer, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	if r := receive(t, newer); r.GetTypeUrl() != listenerType {
		t.Errorf("the newer Envoy received %s", r.GetTypeUrl())
	}

	end()
	if r := receive(t, older); r.GetTypeUrl() != clusterURL {
		t.Errorf("after the newer Envoy ended, the older one received %s", r.GetTypeUrl())
	}
}
