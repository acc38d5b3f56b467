package xds

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// explore runs a client of each protocol and one on-demand client through random changes, ACKs in random order and at
// random times, and reconnects. Then it compares their resources with the state. Time is simulated.
func explore(t *testing.T, seed uint64, faults bool) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, map[bool]uint64{true: 1, false: 0}[faults]))
		server, err := NewServer(Config{Source: modelSource{}})
		if err != nil {
			t.Fatal(err)
		}
		w := initialState()
		server.Push(w, testChange(Order))
		clients := []*envoyModel{
			newEnvoyModel(rng, server, "model", deltaProtocol, !faults), newEnvoyModel(rng, server, "model", sotwProtocol, !faults),
			newEnvoyModel(rng, server, onDemandNode, deltaProtocol, false),
		}
		for n := range 60 {
			switch rng.IntN(8) {
			case 0, 1:
				var touched []string
				w, touched = edit(rng, w, n+1, faults)
				for _, c := range clients {
					c.record("push of %v", touched)
				}
				server.Push(w, testChange(touched))
			case 2:
				if rng.IntN(3) == 0 {
					clients[rng.IntN(len(clients))].reconnect()
				}
			case 3:
				time.Sleep(time.Duration(rng.IntN(800)) * time.Millisecond)
			default:
				clients[rng.IntN(len(clients))].step()
			}
			if rng.IntN(2) == 0 {
				synctest.Wait()
			}
		}
		if faults {
			w = withoutBadContent(w)
			server.Push(w, testChange(Order))
		}
		processAll(clients)
		if faults { // the server sends resources that were rejected together with an invalid one only with a later change
			server.Push(w, testChange(Order))
			processAll(clients)
		}
		checkClients(t, clients, w, faults)
		checkInSync(t, server)
		for _, c := range clients {
			c.stream.cancel()
		}
		server.Stop()
		synctest.Wait()
	})
}

// checkClients compares the clients' resources with those that they should have in a state.
func checkClients(t *testing.T, clients []*envoyModel, w meshState, faults bool) {
	for _, c := range clients {
		got, want := c.state(), describeEffective(c.visibleState(w))
		// The server does not know about resources that arrived together with an invalid one, and were removed while
		// the client was disconnected.
		if faults {
			maps.DeleteFunc(got, func(what, _ string) bool { return want[what] == "" })
		}
		if !maps.Equal(got, want) {
			c.failures = append(c.failures, fmt.Sprintf("the client has\n%s\nwant\n%s", formatLines(got), formatLines(want)))
		}
		if len(c.failures) > 0 {
			t.Errorf("the %s client: %s\n%s", c.stream.name, c.failures[0], strings.Join(c.history, "\n"))
		}
	}
}

func checkInSync(t *testing.T, server *Server) {
	for _, st := range server.Clients() {
		if !st.InSync {
			t.Errorf("%s is not in sync: %+v", st.ID, st)
		}
	}
}

// exploreSwitches switches a client between two control planes at random times, during changes. The client must not
// receive VHDS responses after it had inline virtual hosts.
func exploreSwitches(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := initialState()
		var servers []*Server
		for _, source := range []Source{modelSource{}, inlineSource{}} {
			server, err := NewServer(Config{Source: source})
			if err != nil {
				t.Fatal(err)
			}
			server.Push(w, testChange(Order))
			servers = append(servers, server)
		}
		home := newEnvoyModel(rng, servers[0], inlineOnlyNode, deltaProtocol, false)
		home.otherServer = servers[1]
		clients := []*envoyModel{home}
		for n := range 100 {
			switch rng.IntN(10) {
			case 0, 1:
				var touched []string
				w, touched = edit(rng, w, n+1, false)
				home.record("push of %v", touched)
				for _, server := range servers {
					server.Push(w, testChange(touched))
				}
			case 2:
				// The client's claims do not show that VHDS must be disabled.
				if home.onOtherServer = rng.IntN(2) == 0; !home.onOtherServer && home.isUndetectable() {
					home.stream.cancel()
					home = newEnvoyModel(rng, servers[0], inlineOnlyNode, deltaProtocol, false)
					home.otherServer, clients[0] = servers[1], home
					continue
				}
				home.reconnect()
			case 3:
				time.Sleep(time.Duration(rng.IntN(800)) * time.Millisecond)
			default:
				home.step()
			}
			if rng.IntN(2) == 0 {
				synctest.Wait()
			}
		}
		processAll(clients)
		checkClients(t, clients, w, false)
		for _, server := range servers {
			checkInSync(t, server)
		}
		home.stream.cancel()
		for _, server := range servers {
			server.Stop()
		}
		synctest.Wait()
	})
}

// processAll lets the clients process all responses until none is left.
func processAll(clients []*envoyModel) {
	for quiet := 0; quiet < 3; quiet++ {
		synctest.Wait()
		for _, c := range clients {
			for c.step() {
				quiet = 0
				synctest.Wait()
			}
		}
		time.Sleep(2 * time.Second)
	}
}

func withoutBadContent(w meshState) meshState {
	for typeURL, resources := range w {
		for name, content := range resources {
			w = w.withResource(typeURL, name, strings.TrimSuffix(content, " bad"))
		}
	}
	return w
}

func formatLines(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, "\t"+k+": "+m[k])
	}
	return strings.Join(out, "\n")
}

// explorations is the number of runs of each test. For more: go test ./controlplane/xds -run EveryOrder -explored 20000
var explorations = flag.Uint64("explored", 600, "runs of each exploration of the protocol")

func TestEveryOrderOfACKsAndReconnectsConverges(t *testing.T) {
	for seed := range *explorations {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { explore(t, seed, false) }) {
			break
		}
	}
}

func TestEveryOrderOfControlPlaneSwitchesConverges(t *testing.T) {
	for seed := range *explorations {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { exploreSwitches(t, seed) }) {
			break
		}
	}
}

func TestEveryOrderWithNACKsConverges(t *testing.T) {
	for seed := range *explorations {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { explore(t, seed, true) }) {
			break
		}
	}
}

func FuzzEveryOrderConverges(f *testing.F) {
	f.Add(uint64(1), false)
	f.Add(uint64(8233), true) // a resource is ACKed after its unsubscription, and rejected when it is subscribed again
	f.Fuzz(explore)
}
