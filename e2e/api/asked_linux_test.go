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

// What servers are asked by proxies: for leave, for modules, how they are, and what they are told.

// authorizer lets requests in that have x-allow, and connections of the account "client".
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

// collector keeps what is sent to it of traces and logs, by gRPC and by HTTP.
type collector struct {
	mu  sync.Mutex
	got bytes.Buffer
}

// has says whether something with this text was sent to a place.
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

// keeps keeps what was posted to where collectors listen.
func (c *collector) keeps(path string, body []byte) bool {
	if c == nil || path != "/v1/traces" && path != "/api/v2/spans" {
		return false
	}
	c.add(path, body)
	return true
}

// rawMessages passes messages as they come, and answers with nothing.
type rawMessages struct{}

func (rawMessages) Marshal(any) ([]byte, error) { return nil, nil }
func (rawMessages) Name() string                { return "raw" }
func (rawMessages) Unmarshal(data []byte, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = bytes.Clone(data)
	}
	return nil
}

// grpc is the collector for those who speak gRPC, whatever the service.
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

// tunnel says where it is asked to connect to.
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

func peerOf(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return r.TLS.PeerCertificates[0].URIs[0].String()
}

// serveSocket serves HTTP by a socket of the file system.
func (s *server) serveSocket() error {
	path := os.Getenv("SOCKET")
	_ = os.Remove(path) // of the one before, that ended
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("the server's socket: %w", err)
	}
	return s.httpServer().Serve(l)
}
