package lifecycle

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

// application is the application of a pod: a server for each protocol, at the pod's own address.
type application struct {
	stopping atomic.Bool
	inFlight atomic.Int64 // requests of HTTP
	served   sync.WaitGroup
	close    []func()
}

// goodbye ends the last answer on a TCP connection of an application that is about to end.
const goodbye = " bye\n"

func startApplication(t testing.TB, p *pod) *application {
	t.Helper()
	a := &application{}
	listen := func(port int) net.Listener {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", p.local, port))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a.serveHTTP(listen(8080), func(p *http.Protocols) { p.SetHTTP1(true) })
	a.serveHTTP(listen(8081), func(p *http.Protocols) { p.SetHTTP1(true); p.SetUnencryptedHTTP2(true) })
	a.serveGRPC(listen(8082))
	a.serveTCP(listen(8083))
	t.Cleanup(a.stop)
	return a
}

func (a *application) stop() {
	for _, c := range a.close {
		c()
	}
	a.served.Wait()
}

// serveHTTP answers after the delay in the request: GET /?wait=200ms.
func (a *application) serveHTTP(l net.Listener, protocols func(*http.Protocols)) {
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.inFlight.Add(1)
		defer a.inFlight.Add(-1)
		if wait, err := time.ParseDuration(r.URL.Query().Get("wait")); err == nil {
			select {
			case <-time.After(wait):
			case <-r.Context().Done():
			}
		}
		fmt.Fprintln(w, "served")
	})}
	protocols(s.Protocols)
	a.served.Go(func() { _ = s.Serve(l) })
	a.close = append(a.close, func() { _ = s.Close() })
}

// shop answers unary calls immediately, and streams messages at the requested intervals.
type shop struct {
	testgrpc.UnimplementedTestServiceServer
}

func (shop) EmptyCall(context.Context, *testgrpc.Empty) (*testgrpc.Empty, error) {
	return &testgrpc.Empty{}, nil
}

func (shop) StreamingOutputCall(r *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
	for _, p := range r.GetResponseParameters() {
		select {
		case <-time.After(time.Duration(p.GetIntervalUs()) * time.Microsecond):
		case <-s.Context().Done():
			return s.Context().Err()
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
	return nil
}

func (a *application) serveGRPC(l net.Listener) {
	s := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s, shop{})
	a.served.Go(func() { _ = s.Serve(l) })
	a.close = append(a.close, s.Stop)
}

// serveTCP echoes lines. Once the application is stopping, it marks the next line on each connection as its last, as
// protocols with long-lived connections do.
func (a *application) serveTCP(l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	a.close = append(a.close, func() { cancel(); _ = l.Close() })
	a.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.served.Go(func() { a.echo(ctx, c) })
		}
	})
}

func (a *application) echo(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for in := bufio.NewScanner(c); in.Scan(); {
		last, end := a.stopping.Load(), "\n"
		if last {
			end = goodbye
		}
		if _, err := c.Write([]byte(in.Text() + end)); err != nil || last {
			return
		}
	}
}
