package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
)

// readNothing subscribes to clusters on many streams and reads none of the responses, while the clusters change.
func readNothing(t *testing.T) {
	c := startControlPlane(t)
	c.writeServices(t, 9000)
	token := c.token(t, "reviews")
	for range 10 {
		conn := c.dial(t)
		defer conn.Close()
		for range 4 {
			subscribe(t.Context(), t, conn, token, "reviews")
		}
	}
	conn := c.dial(t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reader := subscribe(ctx, t, conn, c.token(t, "ratings"), "ratings")
	stop := c.watchMemory(t)
	for port := 9001; port <= 9020; port++ {
		c.writeServices(t, port)
		if err := awaitCluster(reader, fmt.Sprintf("outbound|%d||s299.default.svc.cluster.local", port)); err != nil {
			t.Fatalf("a client that reads: %v", err)
		}
	}
	assertGrowth(t, stop(), 320)
}

// writeServices replaces 300 services, whose port is in the names of their clusters.
func (c *controlPlane) writeServices(t *testing.T, port int) {
	t.Helper()
	var text strings.Builder
	for n := range 300 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: default}\nspec: {clusterIP: 10.1.%d.%d, ports: [{name: http, port: %d}]}\n",
			n, n/250, n%250+1, port)
	}
	file := filepath.Join(c.config, "many.yaml")
	if err := errors.Join(os.WriteFile(file+".new", []byte(text.String()), 0o644), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

func subscribe(ctx context.Context, t *testing.T, conn *grpc.ClientConn, token, account string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(addToken(ctx, token))
	if err == nil {
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: sidecarNode(t, account), TypeUrl: clusterType})
	}
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return stream
}

// awaitCluster reads and acknowledges responses until one contains a cluster of that name.
func awaitCluster(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, name string) error {
	for {
		response, err := stream.Recv()
		if err == nil {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: response.GetTypeUrl(), ResponseNonce: response.GetNonce()})
		}
		if err != nil {
			return fmt.Errorf("waiting for cluster %s: %w", name, err)
		}
		if slices.ContainsFunc(response.GetResources(), func(r *discoveryv3.Resource) bool { return r.GetName() == name }) {
			return nil
		}
	}
}
