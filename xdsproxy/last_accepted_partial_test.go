package xdsproxy

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"google.golang.org/protobuf/types/known/anypb"
)

// plain returns a SotW response with resources whose content is their name.
func plain(t testing.TB, typeURL, version string, names ...string) []byte {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: version}
	for _, name := range names {
		r.Resources = append(r.Resources, &anypb.Any{TypeUrl: typeURL, Value: wire.AppendText(wire.AppendText(nil, 1, name), 9, version)})
	}
	return encode(t, r)
}

// A SotW Envoy that receives two responses of a type ACKs only the newer one. It may have rejected the older one, so the
// relay does not store that. A restarted Envoy that received the stored resources must not report the newest version: a control
// plane that compares versions would send nothing.
func TestUnansweredResponseIsRequestedAfterRestart(t *testing.T) {
	for name, both := range map[string]bool{"both answered": true, "the newer one answered": false} {
		t.Run(name, func(t *testing.T) {
			l := newManualControlPlane(t, "127.0.0.1:0")
			config := Config{Upstreams: []string{l.address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
			relay, stop := run(t, config)
			envoy := sotwStream(t, relay)
			var s *manualStream
			ask := func(typeURL string, names ...string) {
				t.Helper()
				r := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
				if s == nil {
					r.Node = testNode
				}
				send(t, envoy, r)
				if s == nil {
					s = l.acceptStream()
				}
				s.receive(wire.SotW, typeURL)
				s.send(plain(t, typeURL, "1", append(names, "all")...))
			}
			answer := func(r *discoveryv3.DiscoveryResponse, names ...string) {
				t.Helper()
				send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: r.TypeUrl, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce, ResourceNames: names})
				s.receive(wire.SotW, r.TypeUrl)
			}
			ask(clusterType)
			answer(receive(t, envoy))
			ask(endpointType, "a", "b")
			answer(receive(t, envoy), "a", "b")
			ask(listenerType)
			answer(receive(t, envoy))
			waitStored(t, relay, time.Time{})

			before := time.Now()
			s.send(plain(t, endpointType, "2", "a"))
			s.send(plain(t, endpointType, "3", "b"))
			older, newer := receive(t, envoy), receive(t, envoy)
			if both {
				answer(older, "a", "b")
			}
			answer(newer, "a", "b")
			waitStored(t, relay, before)
			stop()
			l.stop()

			relay, _ = run(t, config)
			envoy = sotwStream(t, relay)
			send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, Node: testNode})
			answerAlone := func(names ...string) *discoveryv3.DiscoveryResponse {
				t.Helper()
				r := receive(t, envoy)
				send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: r.TypeUrl, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce, ResourceNames: names})
				return r
			}
			if r := answerAlone(); r.VersionInfo != "1" {
				t.Errorf("the clusters' version is %q", r.VersionInfo)
			}
			send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{"a", "b"}})
			want, contents := "3", []string{"2", "3"}
			if !both {
				want, contents = "", []string{"1", "3"}
			}
			r := answerAlone("a", "b")
			var got []string
			for _, one := range r.Resources {
				got = append(got, string(one.Value[len(one.Value)-1:]))
			}
			if r.VersionInfo != want || !slices.Equal(got, contents) {
				t.Errorf("Envoy received the version %q with %q, want %q with %q", r.VersionInfo, got, want, contents)
			}
			back := newManualControlPlane(t, l.address).acceptStream()
			requested := back.next(wire.SotW)
			for requested.TypeURL != endpointType {
				requested = back.next(wire.SotW)
			}
			if requested.Version != want {
				t.Errorf("the request contains the version %q, want %q", requested.Version, want)
			}
		})
	}
}
