package sds

import (
	"context"
	"io/fs"
	"net"
	"os"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// ExternalServer is the API that another process serves on a socket.
type ExternalServer string

// The APIs that ProbeSocket distinguishes.
const (
	// ExternalNone: the socket is missing, or no process listens on it.
	ExternalNone ExternalServer = ""
	// ExternalSDS: an SDS server, which Envoy can use directly.
	ExternalSDS ExternalServer = "SDS"
	// ExternalWorkloadAPI: a SPIFFE Workload API without SDS.
	ExternalWorkloadAPI ExternalServer = "SPIFFE Workload API"
)

// probeTimeout limits ProbeSocket.
const probeTimeout = time.Second

// ProbeSocket detects the API that is served on a unix socket. A server that does not respond within a second is
// reported as SDS, because Istio's agent assumes SDS for every server.
func ProbeSocket(ctx context.Context, socket string) ExternalServer {
	info, err := os.Stat(socket)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return ExternalNone
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return ExternalNone
	}
	_ = raw.Close()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
	if err != nil {
		return ExternalNone
	}
	defer func() { _ = conn.Close() }()
	if speaksSDS(ctx, conn) || !speaksWorkloadAPI(ctx, conn) {
		return ExternalSDS
	}
	return ExternalWorkloadAPI
}

func speaksSDS(ctx context.Context, conn grpc.ClientConnInterface) bool {
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err == nil {
		// The response shows whether the server implements the method. The stream ends with the connection.
		_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{DefaultName}})
		_, err = stream.Recv()
	}
	return status.Code(err) != codes.Unimplemented
}

func speaksWorkloadAPI(ctx context.Context, conn grpc.ClientConnInterface) bool {
	stream, err := workload.NewSpiffeWorkloadAPIClient(conn).FetchX509SVID(
		metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true"), &workload.X509SVIDRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return status.Code(err) != codes.Unimplemented
}
