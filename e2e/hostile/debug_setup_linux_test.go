package hostile

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// doIn requests a page from a namespace.
func doIn(n *testns.Namespace, url string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			err = n.Run(func() error {
				conn, err = net.DialTimeout(network, address, 5*time.Second)
				return err
			})
			return conn, err
		},
	}}
	return client.Do(request)
}

// dial connects in the machine's network, from one of its addresses.
func (m *cloudMachine) dial(from, to string) (conn net.Conn, err error) {
	err = m.Run(func() error {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err = dialer.Dial("tcp", to)
		return err
	})
	return conn, err
}

// raw sends a request there, and returns the whole response.
func (m *cloudMachine) raw(from, to, request string) string {
	m.t.Helper()
	conn, err := m.dial(from, to)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn, request)
	answer, _ := io.ReadAll(conn)
	return string(answer)
}
