package xds

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

func TestAdmissionTimesAreEvenlySpacedAfterABurst(t *testing.T) {
	d := streamLimiter{Admission: Admission{Rate: 10, Wait: time.Second}}
	now := time.Unix(1000, 0)
	for i := range 20 { // the last stream reaches the limit
		in, ok := d.reserve(now)
		if want := max(0, time.Duration(i-9)*100*time.Millisecond); !ok || in != want {
			t.Errorf("stream %d waits for %v, %v; want %v", i, in, ok, want)
		}
	}
	if in, ok := d.reserve(now); ok {
		t.Errorf("a stream would have to wait for %v instead of being refused", in)
	}
	if in, ok := d.reserve(now.Add(time.Second)); !ok || in > 200*time.Millisecond {
		t.Errorf("a second later a stream waits for %v, %v", in, ok)
	}
	if in, ok := d.reserve(now.Add(time.Hour)); !ok || in != 0 {
		t.Errorf("after a quiet time a stream waits for %v, %v", in, ok)
	}
	if in, ok := (&streamLimiter{Admission: Admission{Rate: -1}}).reserve(now); !ok || in != 0 {
		t.Errorf("without a limit a stream waits for %v, %v", in, ok)
	}
}

func TestStreamWithTooLongWaitIsRefused(t *testing.T) {
	r := newTestServer(t, Config{Admission: Admission{Rate: 1, Wait: time.Millisecond}})
	r.push(smallState)
	first := r.newDeltaClient()
	first.subscribe(lds)
	first.expect("lds +l1=1 +l2=1")
	second := r.newDeltaClientAs("sidecar~1.1.1.2~b.default~default.svc.cluster.local")
	second.subscribe(lds)
	wantCode(t, second.awaitEnd(), codes.ResourceExhausted)
	r.push(smallState.withResource(lds, "l1", "2"), lds)
	first.expect("lds +l1=2")
}

func TestStreamsBeyondTheMaximumAreRefusedUntilOneEnds(t *testing.T) {
	r := newTestServer(t, Config{Admission: Admission{MaxStreams: 1}})
	r.push(smallState)
	first := r.newDeltaClient()
	first.subscribe(lds)
	first.expect("lds +l1=1 +l2=1")
	second := r.newDeltaClient()
	second.subscribe(lds)
	wantCode(t, second.awaitEnd(), codes.ResourceExhausted)
	first.cancel()
	for end := time.Now().Add(deadline); r.streams.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a stream that ended still counts")
		}
	}
	third := r.newDeltaClient()
	third.subscribe(lds)
	third.expect("lds +l1=1 +l2=1")
}

func TestFirstResponsesLeaveSlotsForPushes(t *testing.T) {
	source, hold := &fakeSource{}, make(chan struct{})
	source.generateErr = func(typeURL string) error {
		if typeURL == lds {
			<-hold
		}
		return nil
	}
	r := newTestServer(t, Config{Source: source, Generators: 2})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	var herd []*deltaClient
	for i := range 20 {
		one := r.newDeltaClientAs(fmt.Sprintf("sidecar~1.1.2.%d~b.default~default.svc.cluster.local", i))
		one.subscribe(lds)
		herd = append(herd, one)
	}
	for end := time.Now().Add(deadline); len(r.Clients()) <= len(herd); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d clients are connected", len(r.Clients()))
		}
	}
	r.push(smallState.withResource(cds, "b", "static2"), cds+" b")
	c.expect("cds +b=static2")
	close(hold)
	for _, one := range herd {
		one.expect("lds +l1=1 +l2=1")
	}
}

// TestThousandSimultaneousClientsAreServed: a thousand clients connect at once, while pushes affect a connected client.
func TestThousandSimultaneousClientsAreServed(t *testing.T) {
	var making, most atomic.Int32
	source := &fakeSource{generateErr: func(string) error {
		now := making.Add(1)
		defer making.Add(-1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		time.Sleep(100 * time.Microsecond) // makes the calls overlap
		return nil
	}}
	const generators = 4
	r := newTestServer(t, Config{Source: source, Generators: generators, Await: time.Second})
	r.push(smallState)
	there := r.newDeltaClient()
	there.subscribe(cds)
	there.expect("cds +a=eds1 +b=static1")
	var herd sync.WaitGroup
	for i := range 1000 {
		c := r.newDeltaClientAs(fmt.Sprintf("sidecar~1.2.%d.%d~b.default~default.svc.cluster.local", i/200, i%200))
		herd.Go(func() {
			c.subscribe(lds)
			m, ok := <-c.got
			if !ok {
				t.Errorf("the server refused client %d: %v", i, c.err)
				return
			}
			c.ack(m)
		})
	}
	served := make(chan struct{})
	go func() { defer close(served); herd.Wait() }()
	pushes, slowest, began := 0, time.Duration(0), time.Now()
	for serving := true; serving; pushes++ {
		content := fmt.Sprintf("static%d", pushes+2)
		r.push(smallState.withResource(cds, "b", content), cds+" b")
		began := time.Now()
		there.expect("cds +b=" + content)
		slowest = max(slowest, time.Since(began))
		select {
		case <-served:
			serving = false
		default:
		}
	}
	if got := most.Load(); got > generators {
		t.Errorf("the resources of %d clients were generated at the same time, want at most %d", got, generators)
	}
	t.Logf("meanwhile %d pushes were sent in %v, the slowest took %v", pushes, time.Since(began), slowest)
}
