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

// explore has clients of each protocol, and one that asks for virtual hosts and clusters as it needs them, live through random changes,
// answers in any order and at any time, and reconnects, and then compares what both have with what they should. Time is simulated.
func explore(t *testing.T, seed uint64, faults bool) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, map[bool]uint64{true: 1, false: 0}[faults]))
		server, err := NewServer(Config{Source: modelSource{}})
		if err != nil {
			t.Fatal(err)
		}
		w := modelFirst()
		server.Push(w, changed(Order))
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
					c.tell("push of %v", touched)
				}
				server.Push(w, changed(touched))
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
			w = healthy(w)
			server.Push(w, changed(Order))
		}
		settle(clients)
		if faults { // what was refused together with what was bad goes with a later change
			server.Push(w, changed(Order))
			settle(clients)
		}
		checkClients(t, clients, w, faults)
		checkInSync(t, server)
		for _, c := range clients {
			c.wire.end()
		}
		server.Stop()
		synctest.Wait()
	})
}

// checkClients compares what clients have with what they should have of a world.
func checkClients(t *testing.T, clients []*envoyModel, w world, faults bool) {
	for _, c := range clients {
		got, want := c.state(), effective(c.seen(w))
		if faults { // what was new beside a bad one, and went while the client was away, nobody knows of
			maps.DeleteFunc(got, func(what, _ string) bool { return want[what] == "" })
		}
		if !maps.Equal(got, want) {
			c.broken = append(c.broken, fmt.Sprintf("it has\n%s\nand should have\n%s", lines(got), lines(want)))
		}
		if len(c.broken) > 0 {
			t.Errorf("the %s client: %s\n%s", c.wire.name, c.broken[0], strings.Join(c.story, "\n"))
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

// roam has a client that must not get virtual hosts apart once it had them whole go to another control plane and back, at
// any time, while what is there changes.
func roam(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := modelFirst()
		var servers []*Server
		for _, source := range []Source{modelSource{}, wholeSource{}} {
			server, err := NewServer(Config{Source: source})
			if err != nil {
				t.Fatal(err)
			}
			server.Push(w, changed(Order))
			servers = append(servers, server)
		}
		home := newEnvoyModel(rng, servers[0], oldNode, deltaProtocol, false)
		home.elsewhere = servers[1]
		clients := []*envoyModel{home}
		for n := range 100 {
			switch rng.IntN(10) {
			case 0, 1:
				var touched []string
				w, touched = edit(rng, w, n+1, false)
				home.tell("push of %v", touched)
				for _, server := range servers {
					server.Push(w, changed(touched))
				}
			case 2:
				if home.away = rng.IntN(2) == 0; !home.away && home.untold() { // nobody could know that it must not
					home.wire.end()
					home = newEnvoyModel(rng, servers[0], oldNode, deltaProtocol, false)
					home.elsewhere, clients[0] = servers[1], home
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
		settle(clients)
		checkClients(t, clients, w, false)
		for _, server := range servers {
			checkInSync(t, server)
		}
		home.wire.end()
		for _, server := range servers {
			server.Stop()
		}
		synctest.Wait()
	})
}

// settle lets the clients take in all that comes, until nothing more does.
func settle(clients []*envoyModel) {
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

func healthy(w world) world {
	for typeURL, resources := range w {
		for name, content := range resources {
			w = w.with(typeURL, name, strings.TrimSuffix(content, " bad"))
		}
	}
	return w
}

func lines(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, "\t"+k+": "+m[k])
	}
	return strings.Join(out, "\n")
}

// explored is how many runs each test makes; more for once: go test ./controlplane/xds -run EveryOrder -explored 20000
var explored = flag.Uint64("explored", 600, "runs of each exploration of the protocol")

func TestEveryOrderOfAnswersAndReconnectsEndsInTheSameState(t *testing.T) {
	for seed := range *explored {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { explore(t, seed, false) }) {
			break
		}
	}
}

func TestEveryOrderOfGoingElsewhereAndBackEndsInTheSameState(t *testing.T) {
	for seed := range *explored {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { roam(t, seed) }) {
			break
		}
	}
}

func TestEveryOrderWithRejectionsToo(t *testing.T) {
	for seed := range *explored {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { explore(t, seed, true) }) {
			break
		}
	}
}

func FuzzEveryOrderEndsInTheSameState(f *testing.F) {
	f.Add(uint64(1), false)
	f.Add(uint64(8233), true) // what a client lets go of is acknowledged after that, and refused when it is asked for again
	f.Fuzz(explore)
}
