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

// oneShotTransport is a transport for plain HTTP that uses each connection for one request, as the kubelet does. It
// starts no goroutines. The transport of net/http starts two per connection, which cause most of a probe's time and
// memory.
type oneShotTransport struct{}

// oneShotBuffer is the size of the buffers for a request and for a response's header. A longer request or header is
// sent or read in parts.
const oneShotBuffer = 1 << 10

var errLongHeader = errors.New("the response header is longer than 64 KiB")

func (oneShotTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	conn, err := dial(r.Context(), "tcp", net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), "80")))
	if err != nil {
		return nil, err
	}
	end := &closingBody{Conn: conn}
	end.stop = context.AfterFunc(r.Context(), func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	resp, err := exchange(conn, r)
	if err != nil {
		_ = end.Close()
		return nil, err
	}
	end.body, resp.Body = resp.Body, end
	return resp, nil
}

// exchange sends the request and reads the header of the response.
func exchange(conn net.Conn, r *http.Request) (*http.Response, error) {
	last := *r
	last.Close = true
	writer := bufio.NewWriterSize(conn, oneShotBuffer)
	if err := cmp.Or(last.Write(writer), writer.Flush()); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: maxHeader}
	reader := bufio.NewReaderSize(limited, oneShotBuffer)
	for {
		resp, err := http.ReadResponse(reader, r)
		switch {
		case err != nil && limited.N <= 0:
			return nil, errLongHeader
		case err != nil:
			return nil, err
		case resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols:
			continue // an informational response (1xx)
		}
		limited.N = math.MaxInt64 // the body has its own limit
		return resp, nil
	}
}

// closingBody is a body that closes the connection when it is closed.
type closingBody struct {
	net.Conn
	body io.Reader
	stop func() bool
}

func (e *closingBody) Read(p []byte) (int, error) { return e.body.Read(p) }

func (e *closingBody) Close() error {
	e.stop()
	return e.Conn.Close()
}
