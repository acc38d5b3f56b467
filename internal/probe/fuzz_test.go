package probe

import (
	"io"
	"net"
	"net/http"
	"testing"
)

func FuzzResponses(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\n\r\nwell", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n", "HTTP/1.0 099 \r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		here, there := net.Pipe()
		go func() {
			defer func() { _ = there.Close() }()
			_, _ = there.Read(make([]byte, 4096)) // the request is shorter
			_, _ = there.Write(text)
		}()
		defer func() { _ = here.Close() }()
		h := HTTP{Host: "127.0.0.1", Port: 80}
		resp, err := exchange(here, h.request(t.Context(), Request{Header: http.Header{}}))
		if err != nil {
			return
		}
		defer func() { _, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) }()
		if a, err := readResponse(resp); err == nil && (a.Code < 200 || a.Code > 599 || len(a.Body) > maxBody) {
			t.Errorf("%d, %d bytes", a.Code, len(a.Body))
		}
	})
}
