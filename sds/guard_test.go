package sds

import (
	"context"
	"io"
	"os"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

func TestNoMethodServesARequestWithoutTheSecret(t *testing.T) {
	log, _ := newLogger(t)
	peers := make(chan uds.Peer, 100)
	guard := &uds.Guard{Secret: uds.NewSecret(), IsExempt: func(p uds.Peer) bool { peers <- p; return false }, Logger: log}
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, testpki.New(t, "root"))), Guard: guard})
	client := secretv3.NewSecretDiscoveryServiceClient(dialServer(t, server))
	request := &discoveryv3.DiscoveryRequest{ResourceNames: []string{DefaultName}}
	methods := map[string]func(context.Context) error{
		"FetchSecrets": func(ctx context.Context) error {
			_, err := client.FetchSecrets(ctx, request)
			return err
		},
		"StreamSecrets": func(ctx context.Context) error {
			stream, err := client.StreamSecrets(ctx)
			return firstAnswer(stream, err, request)
		},
		"DeltaSecrets": func(ctx context.Context) error {
			stream, err := client.DeltaSecrets(ctx)
			return firstAnswer(stream, err, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{DefaultName}})
		},
	}
	for name, call := range methods {
		t.Run(name, func(t *testing.T) {
			for secret, want := range map[string]codes.Code{"": codes.PermissionDenied, "guess": codes.PermissionDenied, guard.Secret: codes.OK} {
				ctx := t.Context()
				if secret != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, uds.SecretHeader, secret)
				}
				if err := call(ctx); status.Code(err) != want {
					t.Errorf("with %d bytes of a secret: %v, want %s", len(secret), err, want)
				}
			}
		})
	}
	if p := <-peers; p.PID != int32(os.Getpid()) {
		t.Errorf("the guard received the peer %+v", p)
	}
}

// firstAnswer sends a request on a stream and returns the error of the response. Send returns io.EOF if the server has already
// refused the stream; the reason then comes from Recv.
func firstAnswer[Req, Resp any](stream grpc.BidiStreamingClient[Req, Resp], err error, request *Req) error {
	if err != nil {
		return err
	}
	if err := stream.Send(request); err != nil && err != io.EOF {
		return err
	}
	_, err = stream.Recv()
	return err
}
