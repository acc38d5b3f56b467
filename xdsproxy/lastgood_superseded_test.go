package xdsproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// An Envoy that receives two responses of a type in short succession answers only the newer one. The result of the
// older one is unknown, so it is not stored. A long log must be rewritten nevertheless.
func TestSupersededResponseDoesNotPreventRewrite(t *testing.T) {
	const responses, size = 12, 700_000
	next := make(chan struct{}, responses)
	cp := &upstream{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		go func() {
			for {
				if _, err := s.Recv(); err != nil {
					return
				}
			}
		}()
		for n := 0; ; n++ {
			content := []byte("\x0a\x01n" + strings.Repeat("x", size))
			if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: listenerType, VersionInfo: fmt.Sprint(n), Nonce: fmt.Sprint(n),
				Resources: []*anypb.Any{{TypeUrl: listenerType, Value: content}}}); err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			select {
			case <-next:
			case <-s.Context().Done():
				return nil
			}
		}
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	diskWriterOf(t, relay)
	envoy := sotwStream(t, relay)
	send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, Node: testNode})
	receive(t, envoy) // without an answer
	for range responses {
		before := time.Now()
		r := receive(t, envoy)
		send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, ResponseNonce: r.Nonce, VersionInfo: r.VersionInfo})
		waitStored(t, relay, before)
		next <- struct{}{}
	}
	if n := relay.Status().LastGood.Storage.Bytes; n > responses*size/2 {
		t.Errorf("the log is %d bytes long, for one resource of %d", n, size)
	}
}

// Stage numbers belong to the writer with which the response was recorded.
func TestStageOfFormerWriterIsIgnored(t *testing.T) {
	s := newStreamState(delta)
	s.ensureType(listenerType)
	s.addPending(response{typeURL: listenerType, nonce: "old"}, 1, 1)
	s.clearStages()
	s.addPending(response{typeURL: listenerType, nonce: "new"}, 2, 1)
	_, h, err := s.processRequest(newFrame(marshal(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: "old"})), true)
	if err != nil || h.answer != ack || h.answered.stage != 0 {
		t.Errorf("%v of stage %d, %v", h.answer, h.answered.stage, err)
	}
}
