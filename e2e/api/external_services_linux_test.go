package api

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// openOutside starts a server on this machine, which workloads reach as a service outside of the mesh.
func (w *testMesh) openOutside(t *testing.T) {
	t.Helper()
	s := &server{name: "outside", calls: map[string]int{}, collected: w.collected}
	for port, serve := range map[int]func(net.Listener){
		portHTTP:        func(l net.Listener) { _ = s.httpServer().Serve(l) },
		portGRPC:        func(l net.Listener) { _ = w.collected.grpc().Serve(l) },
		portTCP:         func(l net.Listener) { _ = s.accept(l, false) },
		portServerFirst: func(l net.Listener) { _ = s.accept(l, true) },
		portTLS: func(l net.Listener) {
			h := s.httpServer()
			h.TLSConfig = w.ca.ServerConfig(t, "outside.example", "*.tls.example", "host.pilotfish.internal")
			h.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
			h.TLSConfig.ClientAuth, h.TLSConfig.ClientCAs = tls.VerifyClientCertIfGiven, w.ca.Pool()
			_ = h.Serve(tls.NewListener(l, h.TLSConfig))
		},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0") // the address that the mesh hands connections for this machine to
		if err != nil {
			t.Fatal(err)
		}
		w.outside[port] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		go serve(l)
		w.onEnd = append(w.onEnd, l.Close)
	}
}

// outsideAddress is where workloads find this machine.
func (w *testMesh) outsideAddress() string {
	a := w.Instances()[0].Proxy.As4()
	return fmt.Sprintf("%d.%d.0.2", a[0], a[1])
}

// outsidePorts names the ports of the server outside of the mesh.
func (w *testMesh) outsidePorts() *strings.Replacer {
	return strings.NewReplacer("$OUTSIDE_HTTP", w.outside[portHTTP], "$OUTSIDE_TCP", w.outside[portTCP], "$OUTSIDE_GRPC", w.outside[portGRPC],
		"$OUTSIDE_TLS", w.outside[portTLS], "$OUTSIDE_MYSQL", w.outside[portServerFirst])
}

func (w *testMesh) fillIn(docs string) string {
	return strings.NewReplacer("$OUTSIDE", w.outsideAddress(), "$DIR", w.dir,
		"$V1", w.instance("v1").Proxy.String(), "$V2", w.instance("v2").Proxy.String(),
		"$CLIENT", w.instance("client").Proxy.String(), "$EDGE", w.instance("gateway").Proxy.String(),
		"$SERVER_CRT", base64.StdEncoding.EncodeToString(w.certificate), "$SERVER_KEY", base64.StdEncoding.EncodeToString(w.key),
		"$CA_CRT", base64.StdEncoding.EncodeToString(w.ca.PEM())).Replace(w.outsidePorts().Replace(docs))
}
