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

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestAnswerThatIsReadSlowlyIsSentWhole: to Envoy the request is over once it has the answer in its memory, while the client
// has read little of it.
func TestAnswerThatIsReadSlowlyIsSentWhole(t *testing.T) {
	t.Parallel()
	const size = 24 << 20 // more than the kernel keeps of a connection
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
	r.waitState(Draining)
	time.Sleep(2 * time.Second) // four times what connections without a request are given
	if n, err := io.Copy(io.Discard, answer.Body); n != size || err != nil {
		t.Errorf("%d bytes of %d: %v", n, size, err)
	}
	r.exit()
}
