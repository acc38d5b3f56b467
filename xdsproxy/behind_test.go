package xdsproxy

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// plain is a SotW response of resources of these names, which are their contents, too.
func plain(t testing.TB, typeURL, version string, names ...string) []byte {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: version}
	for _, name := range names {
		r.Resources = append(r.Resources, &anypb.Any{TypeUrl: typeURL, Value: appendText(appendText(nil, 1, name), 9, version)})
	}
	return encoded(t, r)
}

// An Envoy of the SotW protocol that gets two parts of a type answers the newer one alone. Of the older one nothing is kept, as
// it may have been refused; and an Envoy that gets what is kept does not say that it has the newest version, with which a control
// plane that keeps versions would send it nothing.
func TestPartThatWasPassedOverIsAskedForAfterARestart(t *testing.T) {
	for name, both := range map[string]bool{"both answered": true, "the newer one answered": false} {
		t.Run(name, func(t *testing.T) {
			l := newLed(t, "127.0.0.1:0")
			config := Config{Upstreams: []string{l.address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
			relay, stop := run(t, config)
			keeperOf(t, relay)
			envoy := sotwStream(t, relay)
			var s *ledStream
			ask := func(typeURL string, names ...string) {
				t.Helper()
				r := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
				if s == nil {
					r.Node = testNode
				}
				send(t, envoy, r)
				if s == nil {
					s = l.stream()
				}
				s.hears(sotw, typeURL)
				s.says(plain(t, typeURL, "1", append(names, "all")...))
			}
			answer := func(r *discoveryv3.DiscoveryResponse, names ...string) {
				t.Helper()
				send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: r.TypeUrl, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce, ResourceNames: names})
				s.hears(sotw, r.TypeUrl)
			}
			ask(clusterType)
			answer(receive(t, envoy))
			ask(endpointType, "a", "b")
			answer(receive(t, envoy), "a", "b")
			ask(listenerType)
			answer(receive(t, envoy))
			kept(t, relay, time.Time{})

			before := time.Now()
			s.says(plain(t, endpointType, "2", "a"))
			s.says(plain(t, endpointType, "3", "b"))
			older, newer := receive(t, envoy), receive(t, envoy)
			if both {
				answer(older, "a", "b")
			}
			answer(newer, "a", "b")
			kept(t, relay, before)
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
				content, _ := within(one.Value, 9)
				got = append(got, string(content))
			}
			if r.VersionInfo != want || !slices.Equal(got, contents) {
				t.Errorf("Envoy gets the version %q with %q, want %q with %q", r.VersionInfo, got, want, contents)
			}
			back := newLed(t, l.address).stream()
			asked := back.next(sotw)
			for asked.typeURL != endpointType {
				asked = back.next(sotw)
			}
			if asked.version != want {
				t.Errorf("the control plane is told that Envoy has %q, want %q", asked.version, want)
			}
		})
	}
}
