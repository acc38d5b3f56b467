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

// Outside is what somebody else serves on a socket.
type Outside string

// What may be found on a socket.
const (
	// OutsideNothing is a socket that is not there, or that nobody listens on.
	OutsideNothing Outside = ""
	// OutsideSDS is a server of secrets, to which Envoy can go by itself.
	OutsideSDS Outside = "SDS"
	// OutsideWorkloadAPI is a SPIFFE Workload API, and no server of secrets.
	OutsideWorkloadAPI Outside = "SPIFFE Workload API"
)

// probeTime bounds the question who listens.
const probeTime = time.Second

// LookOutside says what is served on a unix socket. A server that says nothing within a second counts as one of secrets,
// as Istio's agent takes every one.
func LookOutside(ctx context.Context, socket string) Outside {
	info, err := os.Stat(socket)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return OutsideNothing
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return OutsideNothing
	}
	_ = raw.Close()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
	if err != nil {
		return OutsideNothing
	}
	defer func() { _ = conn.Close() }()
	if speaksSDS(ctx, conn) || !speaksWorkloadAPI(ctx, conn) {
		return OutsideSDS
	}
	return OutsideWorkloadAPI
}

func speaksSDS(ctx context.Context, conn grpc.ClientConnInterface) bool {
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err == nil {
		// What it answers shows whether it knows the method; the stream ends with the connection.
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
