package xdsproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// An Envoy that gets two responses of a type, one soon after the other, answers the newer one alone. What becomes of the
// older one is not known, so that it does not count; and the log is written anew all the same when it has become long.
func TestResponseThatIsPassedOverDoesNotKeepTheLogFromBeingWrittenAnew(t *testing.T) {
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
	keeperOf(t, relay)
	envoy := sotwStream(t, relay)
	send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, Node: testNode})
	receive(t, envoy) // and is not answered
	for range responses {
		before := time.Now()
		r := receive(t, envoy)
		send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, ResponseNonce: r.Nonce, VersionInfo: r.VersionInfo})
		kept(t, relay, before)
		next <- struct{}{}
	}
	if n := relay.Status().LastGood.Kept.Bytes; n > responses*size/2 {
		t.Errorf("the log is %d bytes long, for one resource of %d", n, size)
	}
}

// The numbers of what is kept are of the keeper that it was begun with.
func TestResponseFromBeforeIsNotTakenForOneThatIsKeptAnew(t *testing.T) {
	s := newStreamState(delta)
	s.of(listenerType)
	s.sent(response{typeURL: listenerType, nonce: "old"}, 1, 1)
	s.forgetStages()
	s.sent(response{typeURL: listenerType, nonce: "new"}, 2, 1)
	_, h, err := s.hear(message(marshal(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: "old"})), true)
	if err != nil || h.verdict != accepted || h.about.stage != 0 {
		t.Errorf("%v of stage %d, %v", h.verdict, h.about.stage, err)
	}
}
