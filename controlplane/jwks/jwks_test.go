package jwks_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
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

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer is an HTTP server with a configurable response.
type issuer struct {
	*httptest.Server
	mu       sync.Mutex
	response http.HandlerFunc
	requests atomic.Int32
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requests.Add(1)
		i.mu.Lock()
		answer := i.response
		i.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) setResponse(answer http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.response = answer
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func keySet(t *testing.T, id string, key any) string {
	t.Helper()
	data, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key, KeyID: id}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// startFetcher runs a fetcher until the test ends.
func startFetcher(t *testing.T, cfg jwks.Config) *jwks.Fetcher {
	t.Helper()
	f := jwks.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func eventually(t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for complaint := check(); complaint != ""; complaint = check() {
		if time.Now().After(deadline) {
			t.Fatal(complaint)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestKeysAreFetchedRefreshedAndRetained(t *testing.T) {
	i := newIssuer(t)
	key := newKey(t)
	i.setResponse(text(keySet(t, "one", key))) // the response also contains the private part of the key
	file := filepath.Join(t.TempDir(), "keys")
	var changes atomic.Int32
	f := startFetcher(t, jwks.Config{Refresh: 20 * time.Millisecond, File: file, Changed: func() { changes.Add(1) }})
	at := i.URL + "/keys"
	f.SetAddresses([]string{at})
	has := func(f *jwks.Fetcher, id string) func() string {
		return func() string {
			if set := f.Sets()[at]; !strings.Contains(set, `"kid":"`+id+`"`) {
				return fmt.Sprintf("the set lacks the key %q: %s, %v", id, set, f.Failures())
			}
			return ""
		}
	}
	eventually(t, has(f, "one"))
	if strings.Contains(f.Sets()[at], `"d":`) {
		t.Error("the set contains the private part of a key")
	}
	before, requests := f.Sets(), i.requests.Load()
	eventually(t, func() string {
		if i.requests.Load() < requests+3 {
			return "the fetcher does not fetch the keys again"
		}
		return ""
	})
	if after := f.Sets(); fmt.Sprintf("%p", before) != fmt.Sprintf("%p", after) || changes.Load() != 1 {
		t.Errorf("fetching unchanged keys counts as a change: %d changes", changes.Load())
	}
	i.setResponse(text(keySet(t, "two", newKey(t))))
	eventually(t, has(f, "two"))

	// If the issuer is unavailable or sends invalid responses, the fetcher continues to use its keys.
	for _, bad := range []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		text("<html>"), text(`{"keys":[]}`), text(`{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`),
		text(strings.Repeat("x", 5*config.MaxKeySet)),
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) },
	} {
		i.setResponse(bad)
		requests := i.requests.Load()
		f.SetAddresses(nil)
		f.SetAddresses([]string{at})
		eventually(t, func() string {
			if failures := f.Failures(); len(failures) != 1 || !failures[0].Known || i.requests.Load() == requests {
				return fmt.Sprintf("%v", failures)
			}
			return has(f, "two")()
		})
	}

	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the cache file: %v, %v", info, err)
	}
	second := startFetcher(t, jwks.Config{File: file})
	second.SetAddresses([]string{at})
	eventually(t, has(second, "two"))
	eventually(t, func() string {
		if failures := second.Failures(); len(failures) != 1 || !failures[0].Known {
			return fmt.Sprintf("%v", failures)
		}
		return ""
	})
}

func TestKeysAreFoundByTheIssuersDiscoveryDocument(t *testing.T) {
	i := newIssuer(t)
	key := newKey(t)
	var name atomic.Pointer[string]
	other, own := "https://other.example", i.URL+"/realm"
	i.setResponse(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/realm" + config.DiscoveryPath:
			fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, *name.Load(), i.URL+"/realm/keys")
		case "/realm/keys":
			fmt.Fprint(w, keySet(t, "one", key.Public()))
		default:
			http.NotFound(w, r)
		}
	})
	name.Store(&other)
	f := startFetcher(t, jwks.Config{})
	at := i.URL + "/realm" + config.DiscoveryPath
	f.SetAddresses([]string{at})
	eventually(t, func() string {
		if failures := f.Failures(); len(failures) != 1 || !strings.Contains(failures[0].Reason, "another issuer") {
			return fmt.Sprintf("the fetcher accepts the discovery document of another issuer: %v", failures)
		}
		return ""
	})
	name.Store(&own)
	eventually(t, func() string {
		if f.Sets()[at] == "" {
			return fmt.Sprintf("%v", f.Failures())
		}
		return ""
	})
}

func TestHangingIssuerDoesNotDelayOthers(t *testing.T) {
	hanging, fine := newIssuer(t), newIssuer(t)
	release := make(chan struct{})
	hanging.setResponse(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	fine.setResponse(text(keySet(t, "one", newKey(t).Public())))
	defer close(release)
	f := startFetcher(t, jwks.Config{})
	f.SetAddresses([]string{hanging.URL + "/1", hanging.URL + "/2", hanging.URL + "/3", fine.URL})
	eventually(t, func() string {
		if f.Sets()[fine.URL] == "" {
			return fmt.Sprintf("%v", f.Failures())
		}
		return ""
	})
}

// failure waits until fetching a URL fails, and returns the reason.
func failure(t *testing.T, f *jwks.Fetcher, at string) (reason string) {
	t.Helper()
	f.SetAddresses([]string{at})
	eventually(t, func() string {
		if failures := f.Failures(); len(failures) == 1 {
			reason = failures[0].Reason
			return ""
		}
		return "the fetcher reports no failure of " + at
	})
	return reason
}

func TestBlockedAddressesAreNotConnectedTo(t *testing.T) {
	behind, front := newIssuer(t), newIssuer(t)
	behind.setResponse(text(keySet(t, "one", newKey(t).Public())))
	front.setResponse(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, behind.URL, http.StatusFound) })
	f := startFetcher(t, jwks.Config{Guard: fetchguard.Guard{NoLoopback: true}})
	for _, at := range []string{
		behind.URL, strings.Replace(behind.URL, "127.0.0.1", "localhost", 1), "http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://0.0.0.0/",
	} {
		if reason := failure(t, f, at); !strings.Contains(reason, "fetches from this address are blocked") {
			t.Errorf("%s: %s", at, reason)
		}
	}
	if behind.requests.Load() > 0 {
		t.Error("the server received a request")
	}
	blocked, err := fetchguard.ParseNetworks("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	f = startFetcher(t, jwks.Config{Guard: fetchguard.Guard{Blocked: blocked}})
	front.setResponse(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://100.100.100.200/", http.StatusFound)
	})
	if reason := failure(t, f, behind.URL); !strings.Contains(reason, "127.0.0.1 is in a blocked network") {
		t.Error(reason)
	}
	if reason := failure(t, startFetcher(t, jwks.Config{}), front.URL); !strings.Contains(reason, "100.100.100.200 is a link-local, metadata") {
		t.Error(reason)
	}
}

func TestRedirectsFromHTTPSToHTTPAreRefusedWithoutTheirTarget(t *testing.T) {
	i := httptest.NewTLSServer(http.RedirectHandler("http://secret.example/", http.StatusFound))
	defer i.Close()
	trust := i.Client().Transport.(*http.Transport).TLSClientConfig
	reason := failure(t, startFetcher(t, jwks.Config{TLS: trust}), i.URL)
	if reason != "the server redirects to a URL that is not HTTPS" {
		t.Error(reason)
	}
}

// TestHostsWithoutDNSAreConnectedTo: their addresses are checked, too.
func TestHostsWithoutDNSAreConnectedTo(t *testing.T) {
	i := newIssuer(t)
	i.setResponse(text(keySet(t, "one", newKey(t).Public())))
	at := strings.Replace(i.URL, "127.0.0.1", "machine.invalid", 1)
	hosts := map[string]netip.Addr{"machine.invalid": netip.MustParseAddr("127.0.0.1")}
	f := startFetcher(t, jwks.Config{Hosts: hosts})
	f.SetAddresses([]string{at})
	eventually(t, func() string {
		if i.requests.Load() == 0 {
			return "no request arrived"
		}
		return ""
	})
	if reason := failure(t, startFetcher(t, jwks.Config{Hosts: hosts, Guard: fetchguard.Guard{NoLoopback: true}}), at); !strings.Contains(reason, "fetches from this address are blocked") {
		t.Error(reason)
	}
}
