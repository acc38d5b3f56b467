package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// controlPlaneAttacks are attempts to exhaust the control plane's memory, connections and streams.
var controlPlaneAttacks = []attack{
	{
		name: "certificate requests without credentials, at full speed, do not fill the control plane's memory", position: unauthenticated,
		limit:   "100 connections with 100 streams each, replaced as fast as the machine can for 5 s, cost 64 MiB",
		service: "each certificate of a client with a token takes at most 2 s more than at a control plane without an attack",
		run:     func(t *testing.T) { floodCertificates(t, 5*time.Second, time.Millisecond) }, exclusive: true,
	},
	{
		name: "certificate requests without credentials, for a minute, do not fill the control plane's memory", position: unauthenticated,
		limit:   "100 connections with 100 streams each, replaced every second for 60 s, cost 64 MiB",
		service: "each certificate of a client with a token takes at most 2 s more than at a control plane without an attack",
		run:     func(t *testing.T) { floodCertificates(t, time.Minute, 500*time.Millisecond) }, lasting: true,
	},
	{
		name: "large requests on the plaintext port do not fill the control plane's memory", position: unauthenticated,
		limit:   "1,000 streams that declare 16 MiB each cost 192 MiB",
		service: "a proxy with a token has its clusters within 2 s",
		run:     floodPlaintext,
	},
	{
		name: "token requests without credentials do not fill the control plane's memory", position: unauthenticated,
		limit:   "40 connections with 100 incomplete requests of up to 64 KiB each cost 64 MiB",
		service: "each exchange of a token takes at most 5 s",
		run:     floodTokens,
	},
	{
		name: "idle connections do not use up the slots for proxies", position: unauthenticated,
		limit:   "an eighth of the slots for one address, a quarter for all",
		service: "a new agent has its certificate and its clusters within 5 s",
		run:     holdConnections,
	},
	{
		name: "a connection without an authenticated stream does not stay open", position: unauthenticated,
		limit:   "5 s (--auth-timeout), whether it is silent, has finished the TLS handshake, or is on the plaintext port",
		service: "the connection of a client with a stream stays open",
		run:     stayIdle,
	},
	{
		name: "subscriptions of one token do not fill the control plane's memory", position: workload,
		limit:   "64 MiB of names for one identity; 320 MiB with what is being handled and with garbage",
		service: "a proxy with another token has its clusters within 5 s",
		run:     floodSubscriptions,
	},
	{
		name: "clients that do not read do not fill the control plane's memory", position: workload,
		limit:   "40 streams and 20 changes of 300 clusters cost 320 MiB",
		service: "a proxy that reads has the clusters of each change",
		run:     readNothing,
	},
}

// assertServed calls a client's operation now and then until stop is called, which reports an error if the client was not
// served or if less than the given percentage of its operations were within limit. Single operations may be slow on a busy
// machine.
func assertServed(t *testing.T, what string, percent int, limit time.Duration, operation func() (time.Duration, error)) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var times []time.Duration
		for {
			took, err := operation()
			if err != nil {
				t.Errorf("%s: attempt %d: %v", what, len(times)+1, err)
				return
			}
			times = append(times, took)
			select {
			case <-time.After(250 * time.Millisecond):
				continue
			case <-done:
			}
			break
		}
		slices.Sort(times)
		t.Logf("%s: %d times, median %v, longest %v", what, len(times), times[len(times)/2], times[len(times)-1])
		if at := times[(len(times)*percent-1)/100]; at > limit {
			t.Errorf("%s: %d %% of the times are up to %v, want %v at most", what, percent, at, limit)
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func assertGrowth(t *testing.T, grown, limit int) {
	t.Helper()
	t.Logf("the control plane's memory grew by %d MiB", grown)
	if grown > limit {
		t.Errorf("the control plane's memory grew by %d MiB, want %d at most", grown, limit)
	}
}

// attacker keeps one connection and as many streams of a call on it as the server permits, each with an incomplete message
// of 16 MiB.
type attacker struct {
	dial    func() (net.Conn, error)
	path    string
	streams int
	max     int // bytes to send of each message; 0: all
	client  *rawClient
	open    []uint32
	sent    map[uint32]int // bytes by stream
}

// step reconnects if necessary, replaces streams that the server has ended and sends a part of each message.
func (a *attacker) step() {
	if a.client == nil {
		conn, err := a.dial()
		if err != nil {
			return
		}
		if a.client, err = newRawClient(conn); err != nil {
			a.close()
			return
		}
		a.sent = map[uint32]int{}
	}
	a.open = slices.DeleteFunc(a.open, func(id uint32) bool { return !a.client.isOpen(id) })
	for len(a.open) < a.streams {
		id, err := a.client.open(a.path, 16<<20-1)
		if err != nil {
			a.close()
			return
		}
		a.open = append(a.open, id)
	}
	for _, id := range a.open {
		if a.max > 0 && a.sent[id] >= a.max {
			continue
		}
		n, err := a.client.send(id, 16<<10)
		if err != nil {
			a.close()
			return
		}
		a.sent[id] += n
	}
}

func (a *attacker) close() {
	if a.client != nil {
		_ = a.client.conn.Close()
	}
	a.client, a.open, a.sent = nil, nil, nil
}

// attackFor steps all attackers for a duration. Each waits for pause after a step, and their first steps are spread over one
// pause.
func attackFor(t *testing.T, duration, pause time.Duration, attackers []*attacker) {
	end := time.Now().Add(duration)
	var group sync.WaitGroup
	for i, a := range attackers {
		group.Go(func() {
			defer a.close()
			time.Sleep(pause * time.Duration(i) / time.Duration(len(attackers)))
			for time.Now().Before(end) && !t.Failed() {
				a.step()
				time.Sleep(pause)
			}
		})
	}
	group.Wait()
}

// floodCertificates attacks for a duration, with a pause after each step. Without any pause, the attackers' goroutines would
// stop the client, which is in the same process. On a busy machine a certificate may take long without an attack: the
// limit is on what it takes longer than at a second control plane, at the same time.
func floodCertificates(t *testing.T, duration, pause time.Duration) {
	c, idle := startControlPlane(t), startControlPlane(t)
	token, idleToken := c.token(t, "reviews"), idle.token(t, "reviews")
	var longest time.Duration
	certify := func() (time.Duration, error) {
		var expected time.Duration
		var idleErr error
		var group sync.WaitGroup
		group.Go(func() { expected, idleErr = idle.certify(t, idleToken, "reviews") })
		took, err := c.certify(t, token, "reviews")
		group.Wait()
		longest = max(longest, took)
		return took - expected, errors.Join(err, idleErr)
	}
	if _, err := certify(); err != nil {
		t.Fatal(err)
	}
	config := c.tls()
	attackers := make([]*attacker, 100)
	for i := range attackers {
		attackers[i] = &attacker{path: createCertificate, streams: 100, dial: func() (net.Conn, error) { return tls.Dial("tcp", c.secure, config) }}
	}
	memory := c.watchMemory(t)
	served := assertServed(t, "delay of a certificate by the attack", 100, 2*time.Second, certify)
	attackFor(t, duration, pause, attackers)
	served()
	t.Logf("the longest time for a certificate is %v", longest)
	assertGrowth(t, memory(), 64)
}

func floodPlaintext(t *testing.T) {
	c := startControlPlane(t)
	token := c.token(t, "reviews")
	if _, err := c.discover(t, token, "reviews"); err != nil {
		t.Fatal(err)
	}
	attackers := make([]*attacker, 100)
	for i := range attackers {
		attackers[i] = &attacker{path: deltaDiscovery, streams: 10, dial: func() (net.Conn, error) { return net.Dial("tcp", c.plain) }}
	}
	memory := c.watchMemory(t)
	served := assertServed(t, "clusters", 50, 2*time.Second, func() (time.Duration, error) { return c.discover(t, token, "reviews") })
	attackFor(t, 12*time.Second, 500*time.Millisecond, attackers) // longer than a request may wait for the budget
	served()
	assertGrowth(t, memory(), 192)
}

// holder keeps idle connections from one source address, and replaces those that the server closes.
type holder struct {
	source string
	target string
	tls    *tls.Config // nil: no handshake
	count  int
}

func (h holder) hold(ctx context.Context, group *sync.WaitGroup) {
	for range h.count {
		group.Go(func() {
			for ctx.Err() == nil {
				dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(h.source)}, Timeout: 5 * time.Second}
				conn, err := dialer.DialContext(ctx, "tcp", h.target)
				if err == nil {
					stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
					if h.tls != nil {
						conn, _ = idleHTTP2(tls.Client(conn, h.tls), nil)
					}
					_, _ = io.Copy(io.Discard, conn)
					stop()
					_ = conn.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
}

func holdConnections(t *testing.T) {
	c := startControlPlane(t, "--max-connections", "160", "--auth-timeout", "5s")
	token := c.token(t, "reviews")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	// 127.0.0.1 is the source address of the legitimate clients too.
	for _, source := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		holder{source: source, target: c.secure, tls: c.tls(), count: 40}.hold(ctx, &group)
		holder{source: source, target: c.secure, count: 20}.hold(ctx, &group)
		holder{source: source, target: c.plain, count: 20}.hold(ctx, &group)
	}
	testenv.Eventually(t, "the attacker has as many connections as he can", func() error {
		if n := c.connections(t); n < 40 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	certified := assertServed(t, "certificate", 50, 5*time.Second, func() (time.Duration, error) { return c.certify(t, token, "reviews") })
	discovered := assertServed(t, "clusters", 50, 5*time.Second, func() (time.Duration, error) { return c.discover(t, token, "reviews") })
	select {
	case <-time.After(8 * time.Second): // longer than any connection of the attacker may stay
	case <-ctx.Done():
	}
	certified()
	discovered()
	c.assertReady(t)
}

// connections returns how many connections the control plane has, by the files that it has open.
func (c *controlPlane) connections(t *testing.T) int {
	t.Helper()
	return countSockets(t, c.pid)
}

func stayIdle(t *testing.T) {
	c := startControlPlane(t, "--auth-timeout", "5s")
	token := c.token(t, "reviews")
	conn := c.dial(t)
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(addToken(t.Context(), token))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: sidecarNode(t, "reviews"), TypeUrl: clusterType}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for what, dial := range map[string]func() (net.Conn, error){
		"silent":       func() (net.Conn, error) { return net.Dial("tcp", c.secure) },
		"TLS":          func() (net.Conn, error) { return tls.Dial("tcp", c.secure, c.tls()) },
		"HTTP/2":       func() (net.Conn, error) { return idleHTTP2(tls.Dial("tcp", c.secure, c.tls())) },
		"plaintext":    func() (net.Conn, error) { return idleHTTP2(net.Dial("tcp", c.plain)) },
		"silent plain": func() (net.Conn, error) { return net.Dial("tcp", c.plain) },
		"token port":   func() (net.Conn, error) { return net.Dial("tcp", c.tokens) },
	} {
		group.Go(func() {
			idle, err := dial()
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			defer idle.Close()
			start := time.Now()
			_ = idle.SetReadDeadline(start.Add(20 * time.Second))
			_, err = io.Copy(io.Discard, idle)
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s: the connection is still open after %v", what, time.Since(start).Round(time.Second))
			}
		})
	}
	group.Wait()
	c.assertReady(t)
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"outbound|9080||reviews.default.svc.cluster.local"}}); err != nil {
		t.Fatalf("the stream that was there before: %v", err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("the stream that was there before: %v", err)
	}
}

// idleHTTP2 performs the HTTP/2 handshake and leaves the reading to the caller.
func idleHTTP2[C net.Conn](conn C, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // with empty settings
	return conn, err
}

func floodSubscriptions(t *testing.T) {
	c := startControlPlane(t)
	mine, others := c.token(t, "reviews"), c.token(t, "ratings")
	if _, err := c.discover(t, others, "ratings"); err != nil {
		t.Fatal(err)
	}
	memory := c.watchMemory(t)
	served := assertServed(t, "clusters", 50, 5*time.Second, func() (time.Duration, error) { return c.discover(t, others, "ratings") })
	ctx, cancel := context.WithCancel(addToken(t.Context(), mine))
	defer cancel()
	for n := range 4 {
		conn := c.dial(t)
		defer conn.Close()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(64<<20))
		if err != nil {
			t.Fatal(err)
		}
		if err := subscribeToMuch(t, stream, n); err != nil {
			t.Logf("stream %d ends: %v", n, err)
		}
	}
	page, err := http.Get("http://" + c.monitoring + "/debug/syncz")
	if err != nil {
		t.Error(err)
	} else {
		n, _ := io.Copy(io.Discard, page.Body)
		_ = page.Body.Close()
		t.Logf("/debug/syncz has %d MiB", n>>20)
	}
	served()
	assertGrowth(t, memory(), 320)
}

// subscribeToMuch subscribes to names of resources that do not exist, 15 MiB a request, and acknowledges what is answered.
func subscribeToMuch(t *testing.T, stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, n int) error {
	node := sidecarNode(t, "reviews")
	for kind, typeURL := range []string{clusterType, endpointType, "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
		"type.googleapis.com/envoy.config.listener.v3.Listener"} {
		names := make([]string, 0, 30_000)
		for i := range cap(names) {
			names = append(names, fmt.Sprintf("outbound|80||%d-%d-%d-%s.default.svc.cluster.local", n, kind, i, strings.Repeat("x", 400)))
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil && err != io.EOF {
			return err
		}
		node = nil
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: answer.GetTypeUrl(), ResponseNonce: answer.GetNonce()}); err == io.EOF {
			_, err = stream.Recv()
			return err
		} else if err != nil {
			return err
		}
	}
	return nil
}

func floodTokens(t *testing.T) {
	c := startControlPlane(t)
	token, config := c.token(t, "reviews"), c.tls()
	attackers := make([]*attacker, 40)
	for i := range attackers {
		attackers[i] = &attacker{path: "/token", streams: 100, max: 60 << 10, dial: func() (net.Conn, error) { return tls.Dial("tcp", c.tokens, config) }}
	}
	memory := c.watchMemory(t)
	served := assertServed(t, "exchange", 100, 5*time.Second, func() (time.Duration, error) { return c.exchange(t, token) })
	attackFor(t, 5*time.Second, 100*time.Millisecond, attackers)
	served()
	assertGrowth(t, memory(), 64)
}

// exchange exchanges a token over a new connection, and returns how long that took.
func (c *controlPlane) exchange(t *testing.T, token string) (time.Duration, error) {
	start, config := time.Now(), c.tls()
	config.NextProtos = nil // HTTP/1.1
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	response, err := client.PostForm("https://"+c.tokens+"/token", url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {token}, "audience": {"orders.example"},
		"subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
	})
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return time.Since(start), err
}
