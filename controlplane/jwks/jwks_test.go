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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer serves what it is told.
type issuer struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  atomic.Int32
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.asked.Add(1)
		i.mu.Lock()
		answer := i.answer
		i.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) say(answer http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
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

// start runs a fetcher until the test ends.
func start(t *testing.T, cfg jwks.Config) *jwks.Fetcher {
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

func TestKeysAreFetchedRefreshedAndOutliveTheirIssuer(t *testing.T) {
	i := newIssuer(t)
	key := newKey(t)
	i.say(text(keySet(t, "one", key))) // with its secret part
	file := filepath.Join(t.TempDir(), "keys")
	var changes atomic.Int32
	f := start(t, jwks.Config{Refresh: 20 * time.Millisecond, File: file, Changed: func() { changes.Add(1) }})
	at := i.URL + "/keys"
	f.Want([]string{at})
	has := func(f *jwks.Fetcher, id string) func() string {
		return func() string {
			if set := f.Sets()[at]; !strings.Contains(set, `"kid":"`+id+`"`) {
				return fmt.Sprintf("no key %q: %s, %v", id, set, f.Failures())
			}
			return ""
		}
	}
	eventually(t, has(f, "one"))
	if strings.Contains(f.Sets()[at], `"d":`) {
		t.Error("the secret part of a key was taken")
	}
	before, asked := f.Sets(), i.asked.Load()
	eventually(t, func() string {
		if i.asked.Load() < asked+3 {
			return "the keys are not asked for again"
		}
		return ""
	})
	if after := f.Sets(); fmt.Sprintf("%p", before) != fmt.Sprintf("%p", after) || changes.Load() != 1 {
		t.Errorf("keys that are the same count as changed: %d changes", changes.Load())
	}
	i.say(text(keySet(t, "two", newKey(t))))
	eventually(t, has(f, "two"))

	// The issuer is gone, says nonsense, or has other things in mind: its keys stay.
	for _, bad := range []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		text("<html>"), text(`{"keys":[]}`), text(`{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`),
		text(strings.Repeat("x", 5*config.MaxKeySet)),
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) },
	} {
		i.say(bad)
		asked := i.asked.Load()
		f.Want(nil)
		f.Want([]string{at})
		eventually(t, func() string {
			if failures := f.Failures(); len(failures) != 1 || !failures[0].Known || i.asked.Load() == asked {
				return fmt.Sprintf("%v", failures)
			}
			return has(f, "two")()
		})
	}

	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what is kept: %v, %v", info, err)
	}
	second := start(t, jwks.Config{File: file})
	second.Want([]string{at})
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
	others, own := "https://somebody.else", i.URL+"/realm"
	i.say(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/realm" + config.DiscoveryPath:
			fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, *name.Load(), i.URL+"/realm/keys")
		case "/realm/keys":
			fmt.Fprint(w, keySet(t, "one", key.Public()))
		default:
			http.NotFound(w, r)
		}
	})
	name.Store(&others)
	f := start(t, jwks.Config{})
	at := i.URL + "/realm" + config.DiscoveryPath
	f.Want([]string{at})
	eventually(t, func() string {
		if failures := f.Failures(); len(failures) != 1 || !strings.Contains(failures[0].Reason, "somebody.else") {
			return fmt.Sprintf("another's document is believed: %v", failures)
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

func TestIssuerThatHangsHoldsUpNoOther(t *testing.T) {
	hanging, fine := newIssuer(t), newIssuer(t)
	release := make(chan struct{})
	hanging.say(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	fine.say(text(keySet(t, "one", newKey(t).Public())))
	defer close(release)
	f := start(t, jwks.Config{})
	f.Want([]string{hanging.URL + "/1", hanging.URL + "/2", hanging.URL + "/3", fine.URL})
	eventually(t, func() string {
		if f.Sets()[fine.URL] == "" {
			return fmt.Sprintf("%v", f.Failures())
		}
		return ""
	})
}
