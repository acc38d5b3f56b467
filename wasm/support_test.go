package wasm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiny is a module that Envoy's V8 loads: it exports proxy_abi_version_0_2_1, malloc and memory.
var tiny = func() []byte {
	b, err := base64.StdEncoding.DecodeString("AGFzbQEAAAABCQJgAABgAX8BfwMDAgABBQMBAAEHLQMXcHJveHlfYWJpX3ZlcnNpb25fMF8yXzEAAAZtYWxsb2MAAQZtZW1vcnkCAAoJAgIACwQAQQAL")
	if err != nil {
		panic(err)
	}
	return b
}()

// other is another module, with the same content and a custom section.
var other = append(bytes.Clone(tiny), 0, 2, 1, 'x')

func zipped(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(content)
	_ = w.Close()
	return b.Bytes()
}

// tarOf returns an archive of alternating names and contents.
func tarOf(members ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		_ = w.WriteHeader(&tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1])), Typeflag: tar.TypeReg})
		_, _ = w.Write([]byte(members[i+1]))
	}
	_ = w.Close()
	return b.Bytes()
}

// running starts Modules until the end of the test; change alters the configuration.
func running(t testing.TB, change func(*Config)) *Modules {
	t.Helper()
	c := Config{Dir: t.TempDir(), Backoff: time.Millisecond, Retries: 3, Metrics: prometheus.NewRegistry()}
	if change != nil {
		change(&c)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return m
}

// origin is an HTTP server of modules that counts its requests.
type origin struct {
	*httptest.Server
	requests atomic.Int32
	answer   atomic.Pointer[http.HandlerFunc]
}

func serve(t testing.TB, handler http.HandlerFunc) *origin {
	o := &origin{}
	o.now(handler)
	o.Server = httptest.NewServer(http.HandlerFunc(o.serve))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) serve(w http.ResponseWriter, r *http.Request) {
	o.requests.Add(1)
	(*o.answer.Load())(w, r)
}

func (o *origin) now(handler http.HandlerFunc) { o.answer.Store(&handler) }

func gives(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }
}

func fails(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// content returns the content of a module's file.
func content(t testing.TB, m *Modules, module Module) []byte {
	t.Helper()
	file, err := m.File(context.Background(), module)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
