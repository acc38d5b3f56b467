package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3" // registers types for the JSON of listeners
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// TestSlowlyReadResponseIsSentCompletely verifies that a shutdown waits until a client has read its response. For
// Envoy, the request is finished as soon as the whole response is in its buffers.
func TestSlowlyReadResponseIsSentCompletely(t *testing.T) {
	t.Parallel()
	const size = 24 << 20 // exceeds the kernel's buffers of a connection
	s := newSetup(t, "127.102.11.1")
	chain := s.cp.listener.FilterChains[0]
	chain.TransportSocket = nil
	hcm := &hcmv3.HttpConnectionManager{}
	if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(hcm); err != nil {
		t.Fatal(err)
	}
	routes := hcm.GetRouteConfig()
	routes.MaxDirectResponseBodySizeBytes = wrapperspb.UInt32(size)
	routes.VirtualHosts[0].Routes[0].GetDirectResponse().Body = &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: strings.Repeat("x", size)},
	}
	chain.Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: mustAny(hcm)}
	s.cp.start(t)
	s.env = append(s.env, s.drainFor("0.5s"), "TERMINATION_GRACE_PERIOD=2m")
	r := s.start(t)
	r.waitReady()
	conn, err := net.Dial("tcp", s.address+":8443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: shop\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.signal(syscall.SIGTERM)
	r.waitState(stateDraining)
	time.Sleep(2 * time.Second) // four times the linger time of idle connections
	if n, err := io.Copy(io.Discard, answer.Body); n != size || err != nil {
		t.Errorf("%d bytes of %d: %v", n, size, err)
	}
	r.waitExit()
}

const tcpListener = `{"name": "tcp", "address": {"socketAddress": {"address": %q, "portValue": 9001}}, "trafficDirection": "INBOUND",
 "filterChains": [{"filters": [{"name": "tcp", "typedConfig": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "statPrefix": "app", "cluster": "app"}}]}]}`

// TestSlowlyReadTCPIsSentCompletely verifies that a shutdown waits until a TCP client has read the data in Envoy's
// buffers.
func TestSlowlyReadTCPIsSentCompletely(t *testing.T) {
	t.Parallel()
	const size = 24 << 20 // exceeds the buffers of kernel and Envoy for a connection
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			app, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = app.Close() })
			go func() {
				if c, err := app.Accept(); err == nil {
					_, _ = c.Write(make([]byte, size))
					_ = c.Close()
				}
			}()
			s := newSetup(t, fmt.Sprintf("127.102.12.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), s.drainFor("3s"), "TERMINATION_GRACE_PERIOD=2m")
			s.cp.more = []*listenerv3.Listener{message(t, &listenerv3.Listener{}, tcpListener, s.address)}
			s.cp.clusters = []*clusterv3.Cluster{message(t, &clusterv3.Cluster{}, appCluster, app.Addr().(*net.TCPAddr).Port)}
			r := s.startReady(t)
			conn, err := net.Dial("tcp", s.address+":9001")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			r.signal(syscall.SIGTERM)
			r.waitState(stateDraining)
			time.Sleep(6 * time.Second) // twice the linger time of idle connections
			if n, err := io.Copy(io.Discard, conn); n != size-1 || err != nil {
				t.Errorf("%d bytes of %d: %v", n+1, size, err)
			}
			r.checkExit(0)
		})
	}
}

// upload sends size bytes, and returns the application's response.
func upload(address string, size int) (string, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(make([]byte, size)); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// TestTCPToSlowServerArrivesCompletely verifies that a shutdown waits until a TCP server has read the data in Envoy's
// buffers.
func TestTCPToSlowServerArrivesCompletely(t *testing.T) {
	const size = 32 << 20 // exceeds the buffers of kernel and Envoy for two connections
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			app, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = app.Close() })
			behind, reads := make(chan struct{}), make(chan struct{})
			go func() {
				if c, err := app.Accept(); err == nil {
					_, _ = io.ReadFull(c, make([]byte, 1))
					close(behind)
					<-reads
					n, _ := io.Copy(io.Discard, c)
					_, _ = fmt.Fprint(c, 1+n)
					_ = c.Close()
				}
			}()
			s := newSetup(t, fmt.Sprintf("127.102.13.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), s.drainFor("3s"), "TERMINATION_GRACE_PERIOD=2m")
			s.cp.more = []*listenerv3.Listener{message(t, &listenerv3.Listener{}, tcpListener, s.address)}
			s.cp.clusters = []*clusterv3.Cluster{message(t, &clusterv3.Cluster{}, appCluster, app.Addr().(*net.TCPAddr).Port)}
			r := s.startReady(t)
			failed := make(chan error, 1)
			go func() {
				answer, err := upload(s.address+":9001", size)
				if err == nil && answer != fmt.Sprint(size) {
					err = fmt.Errorf("the application reports %s received bytes", answer)
				}
				failed <- err
			}()
			<-behind
			r.signal(syscall.SIGTERM)
			r.waitState(stateDraining)
			time.Sleep(6 * time.Second) // twice the linger time of idle connections
			close(reads)
			if err := <-failed; err != nil {
				t.Error(err)
			}
			r.checkExit(0)
		})
	}
}
