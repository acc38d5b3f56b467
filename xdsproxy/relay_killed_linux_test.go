package xdsproxy

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// newChangingControlPlane returns a control plane that sends generations: five clusters of one version, and one more in
// every other generation. Contents grow and shrink up to size.
func newChangingControlPlane(generation *atomic.Int64, size int) *fakeControlPlane {
	return &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		for {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
			n := generation.Load()
			if r.TypeUrl == clusterType {
				n = generation.Add(1)
			} else if r.ResponseNonce != "" {
				continue
			}
			version := strconv.FormatInt(n, 10)
			answer := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeUrl, Nonce: version}
			add := func(name string) {
				content := bytes.Repeat([]byte(name), 1+rand.IntN(size))
				answer.Resources = append(answer.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: r.TypeUrl, Value: content}})
			}
			for i := range 5 {
				add(fmt.Sprint(i))
			}
			if n%2 == 0 {
				add("even")
			} else {
				answer.RemovedResources = []string{"even"}
			}
			if err := s.Send(answer); err != nil {
				return err
			}
		}
	}}
}

// TestKilledRelayLeavesAcceptedState: the stored state is a complete and accepted generation, and not older than one
// that was stored before.
func TestKilledRelayLeavesAcceptedState(t *testing.T) {
	testKilledRelay(t, 40<<10, 8)
}

func TestRelayKilledDuringLargeResponsesLeavesAcceptedState(t *testing.T) {
	testKilledRelay(t, 2<<20, 4)
}

func testKilledRelay(t *testing.T, size, rounds int) {
	t.Helper()
	var generation atomic.Int64
	address, _ := newChangingControlPlane(&generation, size).listen(t, "127.0.0.1:0", nil)
	dir := t.TempDir()
	newest, began := 0, time.Now()
	for round := 0; round < rounds || newest == 0 && time.Since(began) < time.Minute; round++ {
		acceptUntilKilled(t, address, dir, time.Duration(50+rand.IntN(1200))*time.Millisecond)
		n := storedGeneration(t, dir)
		if n < newest {
			t.Errorf("round %d: generation %d is stored, after %d", round, n, newest)
		}
		newest = max(newest, n)
	}
	if newest == 0 {
		t.Error("no generation was stored")
	}
}

// acceptUntilKilled simulates an Envoy that accepts responses, except every seventh generation, until the relay is
// killed.
func acceptUntilKilled(t *testing.T, address, dir string, after time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "XDS")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), relayProcessEnv+"="+socket+","+address+","+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = input.Close() }()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dialRelay(t, &Relay{config: Config{Socket: socket}})).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode, TypeUrl: clusterType})
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	for {
		r, err := stream.Recv()
		if err != nil {
			break
		}
		answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
		if n, _ := strconv.Atoi(r.Resources[0].Version); n%7 == 0 {
			answer.ErrorDetail = &rpcstatus.Status{Code: 3, Message: "no"}
		}
		_ = stream.Send(answer)
	}
	_ = cmd.Wait()
}

// storedGeneration returns the generation that a relay would load, or 0.
func storedGeneration(t *testing.T, dir string) int {
	t.Helper()
	store := lastgood.Open(lastgood.Config{Dirs: []string{dir}})
	defer store.Close()
	snapshot := <-store.Load(t.Context(), lastgood.Identity{Node: testNode.Id, Cluster: testNode.Cluster, Protocol: "delta"})
	if st := store.Status(); st.Failures > 0 {
		t.Fatalf("the stored state cannot be loaded: %+v", st)
	}
	if snapshot == nil {
		return 0
	}
	defer func() { _ = snapshot.Close() }()
	if _, ok := snapshot.Version(listenerType); !ok { // large clusters are saved before Envoy has everything
		return 0
	}
	versions := make(map[string]bool)
	names := snapshot.Names(clusterType)
	for _, name := range names {
		version, content, _, err := snapshot.Resource(clusterType, name)
		if err != nil || len(content) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(content), err)
		}
		versions[version] = true
	}
	var n int
	for version := range versions {
		n, _ = strconv.Atoi(version)
	}
	if len(versions) != 1 || n%7 == 0 || len(names) != 6-n%2 || !snapshot.HasResource(listenerType, "0") {
		t.Errorf("the stored state contains the clusters %v of the generations %v", names, versions)
	}
	return n
}
