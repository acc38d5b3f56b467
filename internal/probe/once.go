package probe

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"time"
)

// once is a transport for plain HTTP that uses each connection once, as a kubelet does. net/http's own starts goroutines
// for each connection, which is most of what such a probe would take of time and memory.
type once struct{}

// oneBuffer holds a request, and the header of an answer, as they mostly are. Longer ones pass through it.
const oneBuffer = 1 << 10

var errLongHeader = errors.New("the answer's header is longer than 64 KiB")

func (once) RoundTrip(r *http.Request) (*http.Response, error) {
	conn, err := dial(r.Context(), "tcp", net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), "80")))
	if err != nil {
		return nil, err
	}
	end := &ending{Conn: conn}
	end.stop = context.AfterFunc(r.Context(), func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	resp, err := exchange(conn, r)
	if err != nil {
		_ = end.Close()
		return nil, err
	}
	end.body, resp.Body = resp.Body, end
	return resp, nil
}

// exchange sends the request and reads the header of the answer.
func exchange(conn net.Conn, r *http.Request) (*http.Response, error) {
	last := *r
	last.Close = true
	writer := bufio.NewWriterSize(conn, oneBuffer)
	if err := cmp.Or(last.Write(writer), writer.Flush()); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: longestHeader}
	reader := bufio.NewReaderSize(limited, oneBuffer)
	for {
		resp, err := http.ReadResponse(reader, r)
		switch {
		case err != nil && limited.N <= 0:
			return nil, errLongHeader
		case err != nil:
			return nil, err
		case resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols:
			continue // what comes before the answer
		}
		limited.N = math.MaxInt64 // the body has a limit of its own
		return resp, nil
	}
}

// ending is a body whose end is the connection's.
type ending struct {
	net.Conn
	body io.Reader
	stop func() bool
}

func (e *ending) Read(p []byte) (int, error) { return e.body.Read(p) }

func (e *ending) Close() error {
	e.stop()
	return e.Conn.Close()
}
