package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// External services that proxies use: authorization, Wasm modules, health checks, and collectors of traces and logs.

// authorizer permits requests with the header x-allow, and connections of the account "client".
type authorizer struct {
	authv3.UnimplementedAuthorizationServer
}

func (authorizer) Check(_ context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	request, caller := r.GetAttributes().GetRequest().GetHttp(), r.GetAttributes().GetSource().GetPrincipal()
	allowed := strings.HasSuffix(caller, "/sa/client")
	if request.GetMethod() != "" {
		allowed = request.GetHeaders()["x-allow"] != ""
	}
	if !allowed {
		return &authv3.CheckResponse{Status: &rpcstatus.Status{Code: 7}, HttpResponse: &authv3.CheckResponse_DeniedResponse{
			DeniedResponse: &authv3.DeniedHttpResponse{Body: "asked, and refused"},
		}}, nil
	}
	return &authv3.CheckResponse{Status: &rpcstatus.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
		Headers: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-asked", Value: "yes"}}},
	}}}, nil
}

// answering is a Wasm module that answers every request with 418 "wasm"; it is at modulePath of every server.
const (
	answering  = "AGFzbQEAAAABHARgAABgAX8Bf2AIf39/f39/f38Bf2ADf39/AX8CIQEDZW52GXByb3h5X3NlbmRfbG9jYWxfcmVzcG9uc2UAAgMEAwABAwUDAQABB0gEF3Byb3h5X2FiaV92ZXJzaW9uXzBfMl8xAAEGbWFsbG9jAAIGbWVtb3J5AgAYcHJveHlfb25fcmVxdWVzdF9oZWFkZXJzAAMKIwMCAAsFAEGACAsYAEGiA0EAQQBBAEEEQQBBAEF/EAAaQQELCwoBAEEACwR3YXNt"
	modulePath = "/answer.wasm"
)

func answeringModule() []byte {
	module, err := base64.StdEncoding.DecodeString(answering)
	if err != nil {
		panic(err)
	}
	return module
}

// collector stores the traces and logs that it receives over gRPC and HTTP.
type collector struct {
	mu  sync.Mutex
	got bytes.Buffer
}

// has reports whether a message that contains the text was sent to a path.
func (c *collector) has(place, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for message := range strings.SplitSeq(c.got.String(), "\x00\x00end") {
		if strings.HasPrefix(message, place) && strings.Contains(message, text) {
			return true
		}
	}
	return false
}

func (c *collector) add(place string, message []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&c.got, "%s %s\x00\x00end", place, message)
}

// addPosted stores the body of a POST request to a collector's path. It reports whether the path is one.
func (c *collector) addPosted(path string, body []byte) bool {
	if c == nil || path != "/v1/traces" && path != "/api/v2/spans" {
		return false
	}
	c.add(path, body)
	return true
}

// rawMessages is a gRPC codec that passes received messages on undecoded, and sends empty messages.
type rawMessages struct{}

func (rawMessages) Marshal(any) ([]byte, error) { return nil, nil }
func (rawMessages) Name() string                { return "raw" }
func (rawMessages) Unmarshal(data []byte, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = bytes.Clone(data)
	}
	return nil
}

// grpc serves the collector for every gRPC service.
func (c *collector) grpc() *grpc.Server {
	return grpc.NewServer(grpc.ForceServerCodec(rawMessages{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		c.add(method, message)
		return stream.SendMsg(&emptypb.Empty{})
	}))
}

// tunnel answers CONNECT with a line that names the requested target.
func (s *server) tunnel(w http.ResponseWriter, r *http.Request) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "only by HTTP/1.1", http.StatusNotImplemented)
		return
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		return
	}
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n\r\n%s tunnels to %s\n", s.name, r.Host)
	s.talk(conn, false)
}

func (s *server) health(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Path {
	case "/health/bad":
		s.ill = true
	case "/health/good":
		s.ill = false
	default:
		if s.ill {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

func peerSPIFFEID(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return r.TLS.PeerCertificates[0].URIs[0].String()
}

// serveSocket serves HTTP by a socket of the file system.
func (s *server) serveSocket() error {
	path := os.Getenv("SOCKET")
	_ = os.Remove(path) // left by an earlier process
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("the server's socket: %w", err)
	}
	return s.httpServer().Serve(l)
}
