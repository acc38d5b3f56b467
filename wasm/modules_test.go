package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func TestModuleIsFetchedOnceAndCachedByChecksum(t *testing.T) {
	o := serve(t, gives(zipped(tiny)))
	m := running(t, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { content(t, m, Module{URL: o.URL + "/a.wasm", Resource: "a"}) })
	}
	all.Wait()
	file, err := m.File(context.Background(), Module{URL: o.URL + "/a.wasm", Resource: "b", SHA256: strings.ToUpper(sumOf(tiny))})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(m.config.Dir, hexSum(o.URL+"/a.wasm"), sumOf(tiny)+".wasm"); file != want {
		t.Errorf("the module is at %s, want %s", file, want)
	}
	if n := o.requests.Load(); n != 1 {
		t.Errorf("the server received %d requests", n)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if n := testutil.ToFloat64(m.metrics.fetches.WithLabelValues(resultSuccess)); n != 1 {
		t.Errorf("%v fetches are counted", n)
	}
}

func TestModuleWithWrongChecksumIsNotUsed(t *testing.T) {
	o := serve(t, gives(other))
	m := running(t, nil)
	_, err := m.File(context.Background(), Module{URL: o.URL, SHA256: sumOf(tiny)})
	if !errors.Is(err, errMismatch) || !strings.Contains(err.Error(), sumOf(other)) {
		t.Errorf("error %v", err)
	}
	if n := testutil.ToFloat64(m.metrics.fetches.WithLabelValues(resultMismatch)); n != 1 || o.requests.Load() != 1 {
		t.Errorf("counted %v, %d requests", n, o.requests.Load())
	}
	if files, _ := filepath.Glob(filepath.Join(m.config.Dir, "*")); len(files) != 0 {
		t.Errorf("temporary files remain: %v", files)
	}
}

func TestOnlyTransientFailuresAreRetried(t *testing.T) {
	for _, c := range []struct{ code, asked int }{{503, 4}, {429, 4}, {404, 1}, {401, 1}} {
		o := serve(t, fails(c.code))
		m := running(t, nil)
		if _, err := m.File(context.Background(), Module{URL: o.URL}); err == nil || !strings.Contains(err.Error(), http.StatusText(c.code)) {
			t.Errorf("%d: error %v", c.code, err)
		}
		if n := int(o.requests.Load()); n != c.asked {
			t.Errorf("%d: %d requests, want %d", c.code, n, c.asked)
		}
	}
	var n atomic.Int32
	o := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(tiny)
	})
	if got := content(t, running(t, nil), Module{URL: o.URL}); !bytes.Equal(got, tiny) {
		t.Errorf("%d bytes", len(got))
	}
}

// Filters still work if the agent restarts while the source is unavailable.
func TestCachedModuleIsUsableAfterRestartWithoutSource(t *testing.T) {
	o := serve(t, gives(tiny))
	dir := t.TempDir()
	in := func(c *Config) { c.Dir = dir }
	first := running(t, in)
	wanted := Module{URL: o.URL + "/m", Resource: "a", Always: true, Version: "1"}
	content(t, first, wanted)
	o.now(fails(http.StatusServiceUnavailable))
	second := running(t, in)
	if got := content(t, second, wanted); !bytes.Equal(got, tiny) || o.requests.Load() < 2 {
		t.Errorf("%d bytes, %d requests", len(got), o.requests.Load())
	}
	if _, err := second.File(context.Background(), Module{URL: o.URL + "/m", SHA256: sumOf(other)}); err == nil {
		t.Error("a module with a wrong checksum was returned")
	}
}

func TestChangedFileIsFetchedAgain(t *testing.T) {
	o := serve(t, gives(tiny))
	dir := t.TempDir()
	in := func(c *Config) { c.Dir = dir }
	file, err := running(t, in).File(context.Background(), Module{URL: o.URL})
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(tiny)
	changed[len(changed)-1] ^= 1
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := content(t, running(t, in), Module{URL: o.URL}); !bytes.Equal(got, tiny) {
		t.Error("the changed file was returned")
	}
	for _, index := range []string{"", "{", `{"../../x.wasm": {}}`, `{"a": null}`, "[]"} {
		if err := os.WriteFile(filepath.Join(dir, indexName), []byte(index), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := content(t, running(t, in), Module{URL: o.URL}); !bytes.Equal(got, tiny) {
			t.Errorf("index %q: another module", index)
		}
	}
}

func TestPullPolicyControlsWhenTheSourceIsQueried(t *testing.T) {
	var body atomic.Pointer[[]byte]
	body.Store(&tiny)
	o := serve(t, func(w http.ResponseWriter, r *http.Request) {
		tag := `"` + sumOf(*body.Load()) + `"`
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(*body.Load())
	})
	m := running(t, nil)
	for _, step := range []struct {
		module Module
		change []byte
		asked  int32
		want   []byte
	}{
		{Module{Resource: "a", Version: "1"}, nil, 1, tiny},
		{Module{Resource: "a", Version: "2"}, other, 1, tiny}, // IfNotPresent
		{Module{Resource: "b", Version: "1", Always: true}, nil, 2, other},
		{Module{Resource: "b", Version: "1", Always: true}, tiny, 2, other}, // the same version of the same filter
		{Module{Resource: "b", Version: "2", Always: true}, nil, 3, tiny},
		{Module{Resource: "b", Version: "3", Always: true}, nil, 4, tiny}, // 304
		{Module{Resource: "c"}, nil, 4, tiny},
	} {
		if step.change != nil {
			body.Store(&step.change)
		}
		step.module.URL = o.URL
		if got := content(t, m, step.module); !bytes.Equal(got, step.want) || o.requests.Load() != step.asked {
			t.Errorf("%+v: %d requests, want %d; right content: %v", step.module, o.requests.Load(), step.asked, bytes.Equal(got, step.want))
		}
	}
	for url, want := range map[string]bool{
		"oci://r.example/a:latest": true, "oci://r.example:5000/a": true, "oci://r.example/a:v1": false,
		"oci://r.example/a@sha256:0": false, "https://r.example/latest": false, "https://r.example/a:latest": false,
	} {
		if isAlwaysQueried("", url) != want {
			t.Errorf("%s: always is %v", url, !want)
		}
	}
}

func TestOnlyUnusedModulesExpire(t *testing.T) {
	o := serve(t, gives(tiny))
	now := time.Now()
	var mu sync.Mutex
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	m := running(t, func(c *Config) { c.Now, c.MaxSize, c.MaxTotal = clock, 1<<10, int64(4*len(tiny)) })
	pass := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	at := func(path, resource string) string {
		file, err := m.File(context.Background(), Module{URL: o.URL + path, Resource: resource})
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	kept := at("/kept", "one")
	old := at("/old", "two")
	at("/next", "two") // the filter now uses another module
	pass(25 * time.Hour)
	if n := m.store.purge(); n != 1 {
		t.Errorf("%d were removed", n)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the unused module was not removed")
	}
	for _, path := range []string{"/a", "/b", "/c"} {
		pass(time.Minute)
		at(path, "three")
	}
	if n, bytes := m.store.count(); n != 4 || bytes > m.config.MaxTotal {
		t.Errorf("%d modules with %d bytes", n, bytes)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a module in use was removed: %v", err)
	}
}

func TestModulesAreNotFetchedFromMetadataAddresses(t *testing.T) {
	c := Config{Blocked: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for address, want := range map[string]bool{
		"169.254.169.254": false, "fe80::1": false, "fd00:ec2::254": false, "fd20:ce::254": false, "100.100.100.200": false,
		"168.63.129.16": false, "192.0.0.192": false, "::ffff:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false, "0.0.0.0": false,
		"::": false, "::169.254.169.254": false, "224.0.0.1": false, "10.1.2.3": false, "::ffff:10.1.2.3": false, "fe80::1%eth0": false,
		"10.2.2.3": true, "127.0.0.1": true, "::1": true, "192.0.2.1": true, "2001:db8::1": true, "64:ff9b::c000:201": true,
	} {
		if got := (fetchguard.Guard{Blocked: c.Blocked}).Check(netip.MustParseAddr(address)) == nil; got != want {
			t.Errorf("%s: allowed is %v", address, got)
		}
	}
	behind := serve(t, gives(tiny))
	front := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, behind.URL, http.StatusFound) })
	blocked := func(c *Config) { c.Blocked = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }
	m := running(t, blocked)
	for _, url := range []string{"http://169.254.169.254/latest", behind.URL, strings.Replace(behind.URL, "127.0.0.1", "localhost", 1), "oci://" + behind.Listener.Addr().String() + "/a:v1"} {
		if _, err := m.File(context.Background(), Module{URL: url}); !errors.Is(err, fetchguard.ErrBlocked) {
			t.Errorf("%s: error %v", url, err)
		}
	}
	if behind.requests.Load() != 0 || front.requests.Load() != 0 {
		t.Error("the server received a request")
	}
	front.now(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
	})
	if _, err := running(t, nil).File(context.Background(), Module{URL: front.URL}); !errors.Is(err, fetchguard.ErrBlocked) || front.requests.Load() != 1 {
		t.Errorf("redirected: error %v, %d requests", err, front.requests.Load())
	}
}

func TestOnlyURLsOfLoopbackLeadToLoopback(t *testing.T) {
	behind := serve(t, gives(tiny))
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.8.9.1:80": true, "[::1]:443": true, "[::ffff:127.0.0.1]:80": true, "localhost": true, "localhost:5000": true,
		"192.0.2.1": false, "localhost.example:80": false, "loopback.example": false, "[2001:db8::1]:80": false, "": false,
	} {
		request, err := http.NewRequest(http.MethodGet, behind.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&Config{}).transport(false, host).RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if got := err == nil; got != want || !want && !errors.Is(err, fetchguard.ErrBlocked) {
			t.Errorf("%s: allowed is %v, error %v", host, got, err)
		}
	}
}

func TestCertificatesAreVerifiedExceptForInsecureHosts(t *testing.T) {
	authority := testpki.New(t, "web")
	o := &origin{}
	o.now(gives(tiny))
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(o.serve))
	o.TLS = authority.ServerConfig(t, "127.0.0.1")
	o.StartTLS()
	t.Cleanup(o.Close)
	if _, err := running(t, nil).File(context.Background(), Module{URL: o.URL}); err == nil || o.requests.Load() != 0 {
		t.Errorf("with an unknown authority: %v, %d requests", err, o.requests.Load())
	}
	content(t, running(t, func(c *Config) { c.Roots = authority.Pool() }), Module{URL: o.URL})
	content(t, running(t, func(c *Config) { c.Insecure = []string{"127.0.0.1"} }), Module{URL: o.URL})

	plain := serve(t, gives(tiny))
	o.now(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) })
	_, err := running(t, func(c *Config) { c.Roots = authority.Pool() }).File(context.Background(), Module{URL: o.URL})
	if !errors.As(err, new(plaintextError)) || plain.requests.Load() != 0 {
		t.Errorf("redirected to a server without TLS: %v", err)
	}
}

func TestFetchesAreLimitedInSizeAndTime(t *testing.T) {
	endless := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(tiny)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	m := running(t, func(c *Config) { c.MaxSize = 1 << 20 })
	if _, err := m.File(context.Background(), Module{URL: endless.URL}); !errors.Is(err, errTooLarge) || endless.requests.Load() != 1 {
		t.Errorf("endless response: %v, %d requests", err, endless.requests.Load())
	}
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(tiny)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	m = running(t, func(c *Config) { c.Retries, c.Timeout = -1, 100*time.Millisecond })
	if _, err := m.File(context.Background(), Module{URL: slow.URL}); err == nil || !strings.Contains(err.Error(), "100ms") {
		t.Errorf("slow response: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(m.config.Dir, tempPrefix+"*")); len(left) != 0 {
		t.Errorf("temporary files remain: %v", left)
	}
}

// URLs often contain secrets.
func TestPasswordsInURLsAreRedacted(t *testing.T) {
	o := serve(t, fails(http.StatusForbidden))
	url := strings.Replace(o.URL, "http://", "http://me:hunter2@", 1) + "/a?token=hunter2"
	_, err := running(t, nil).File(context.Background(), Module{URL: url})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v", err)
	}
	o.Close()
	_, err = running(t, nil).File(context.Background(), Module{URL: url})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v", err)
	}
}

func TestMessagesAboutModulesContainNoSecret(t *testing.T) {
	for _, url := range []string{"https://tok%65n@example.com/m.wasm?sig=token", "oci://me:token@example.com/m", "https://token@[::1/"} {
		if text := (Module{URL: url}).redactedURL(); strings.Contains(text, "token") || strings.Contains(text, "tok%65n") {
			t.Errorf("%s is shown as %s", url, text)
		}
	}
	_, err := running(t, func(c *Config) { c.Retries = -1 }).File(context.Background(), Module{URL: "http://token:token@127.164.9.9:1/m?token=token"})
	if err == nil || strings.Contains(err.Error(), "token") {
		t.Errorf("the error: %v", err)
	}
}
