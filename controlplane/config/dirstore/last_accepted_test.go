package dirstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const (
	strictDocument = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}\n"
	denyDocument   = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny}\nspec: {}\n"
)

var (
	strictKey = config.Key{Kind: config.PeerAuthentication, Namespace: "istio-system", Name: "default"}
	denyKey   = config.Key{Kind: config.AuthorizationPolicy, Namespace: "default", Name: "deny"}
)

// restarts is a directory whose store is restarted.
type restarts struct {
	t            *testing.T
	dir          string
	lastGoodFile string
	log          bytes.Buffer
	store        *Store
	cancel       context.CancelFunc
	done         chan error
}

func newRestarts(t *testing.T) *restarts {
	r := &restarts{t: t, dir: t.TempDir(), lastGoodFile: filepath.Join(t.TempDir(), "last-good")}
	t.Cleanup(r.stop)
	return r
}

func (r *restarts) write(name, text string) { write(r.t, filepath.Join(r.dir, name), text) }

// start creates the store and watches the files. Before the first waitFor, the store contains the result of its first
// scan.
func (r *restarts) start() {
	r.t.Helper()
	store, err := New(Config{Paths: []string{r.dir}, LastGood: r.lastGoodFile, Rescan: time.Hour, Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = store
}

func (r *restarts) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan error, 1)
	go func() { r.done <- r.store.Run(ctx) }()
}

func (r *restarts) stop() {
	if r.cancel == nil {
		return
	}
	r.cancel()
	if err := <-r.done; err != nil {
		r.t.Errorf("Run ended with %v", err)
	}
	r.cancel = nil
}

func (r *restarts) waitFor(what string, ok func() bool) {
	r.t.Helper()
	(&runningStore{Store: r.store, t: r.t}).waitFor(what, ok)
}

func (r *restarts) hasLastGoodFile() bool {
	_, err := os.Stat(r.lastGoodFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	return err == nil
}

// breakFiles runs a store with valid files, replaces them by invalid ones, and stops it.
func (r *restarts) breakFiles(good, bad map[string]string) {
	r.t.Helper()
	for name, text := range good {
		r.write(name, text)
	}
	r.start()
	r.run()
	for name, text := range bad {
		r.write(name, text)
	}
	r.waitFor("the documents are stale and kept", func() bool {
		stale := 0
		for _, d := range r.store.Documents() {
			if d.State == config.Stale {
				stale++
			}
		}
		data, _ := os.ReadFile(r.lastGoodFile)
		return stale > 0 && bytes.Count(data, []byte(`"since":`)) == stale && stale >= len(bad)
	})
	r.stop()
}

func (r *restarts) state(key config.Key) config.Document {
	for _, d := range r.store.Documents() {
		if d.Key == key {
			return d
		}
	}
	return config.Document{}
}

func (r *restarts) wantInForce(want bool, keys ...config.Key) {
	r.t.Helper()
	for _, key := range keys {
		if got := r.store.Get(key); (got != nil) != want {
			r.t.Errorf("%s in force: %v, want %v; documents %+v", key, got != nil, want, r.store.Documents())
		}
	}
}

func (r *restarts) wantStrict() {
	r.t.Helper()
	got := r.store.Get(strictKey)
	if got == nil || got.Spec.(*security.PeerAuthentication).GetMtls().GetMode() != security.PeerAuthentication_MutualTLS_STRICT {
		r.t.Fatalf("in force is %+v", got)
	}
}

func badStrict() string { return strings.Replace(strictDocument, "STRICT", "STRICTT", 1) }
func badDeny() string   { return strings.Replace(denyDocument, "spec: {}", "spec: {rulez: []}", 1) }

func TestRestartRetainsLastGoodVersions(t *testing.T) {
	for name, bad := range map[string]map[string]string{
		"refused":             {"strict.yaml": badStrict(), "deny.yaml": badDeny()},
		"unreadable as YAML":  {"strict.yaml": "{", "deny.yaml": "apiVersion: v1\n  kind: x\n"},
		"of unknown kind":     {"strict.yaml": strings.Replace(strictDocument, "kind: Peer", "kind: Pear", 1), "deny.yaml": badDeny()},
		"not text":            {"strict.yaml": "\xff", "deny.yaml": "\xfe"},
		"without their names": {"strict.yaml": strings.Replace(badStrict(), "name:", "nam:", 1), "deny.yaml": badDeny()},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestarts(t)
			r.breakFiles(map[string]string{"strict.yaml": strictDocument, "deny.yaml": denyDocument}, bad)
			before := r.state(strictKey)
			for range 2 { // a second restart is no different
				r.start()
				r.wantStrict()
				r.wantInForce(true, denyKey)
				after := r.state(strictKey)
				if after.State != config.Stale || !after.Since.Equal(before.Since) || after.At != before.At {
					t.Errorf("the document was %+v, and is %+v", before, after)
				}
				if at := r.store.Get(strictKey).PositionOf("spec.mtls.mode"); at.File != filepath.Join(r.dir, "strict.yaml") || at.Line != 1 {
					t.Errorf("its position is %s", at)
				}
				r.run()
				r.waitFor("it is reported", func() bool { return len(listErrors(r.store.Problems())) >= 2 })
				r.stop()
			}
		})
	}
}

func TestFixedDocumentRemovesLastGoodFile(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": service("a", 80)}, map[string]string{"a.yaml": strings.Replace(service("a", 80), "port:", "prot:", 1)})
	r.start()
	r.run()
	r.write("a.yaml", service("a", 81))
	r.waitFor("the mended document is in force", func() bool { return portOf(r.store, "a") == 81 })
	r.waitFor("nothing is kept", func() bool { return !r.hasLastGoodFile() })
	if d := r.state(serviceKey("a")); d.State != config.InForce {
		t.Errorf("document is %+v", d)
	}
}

func TestDocumentFixedBeforeRestartIsInForce(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": service("a", 80)}, map[string]string{"a.yaml": "{"})
	r.write("a.yaml", service("a", 81))
	r.start()
	if d := r.state(serviceKey("a")); portOf(r.store, "a") != 81 || d.State != config.InForce || d.At.Line != 1 {
		t.Errorf("port %d is in force, document is %+v", portOf(r.store, "a"), d)
	}
	r.run()
	r.waitFor("nothing is kept", func() bool { return !r.hasLastGoodFile() })
}

func TestDocumentRemovedBeforeRestartStaysRemoved(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": service("a", 80), "b.yaml": service("b", 80)}, map[string]string{"a.yaml": "{", "b.yaml": "{"})
	if err := os.Remove(filepath.Join(r.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r.write("b.yaml", service("c", 80)) // without b
	r.start()
	r.wantInForce(false, serviceKey("a"), serviceKey("b"))
	r.run()
	r.waitFor("nothing is kept", func() bool { return !r.hasLastGoodFile() })
}

func TestDocumentMovedBeforeRestartRetainsLastGoodVersion(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": strictDocument}, map[string]string{"a.yaml": badStrict()})
	since := r.state(strictKey).Since
	if err := os.Rename(filepath.Join(r.dir, "a.yaml"), filepath.Join(r.dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wantStrict()
	if d := r.state(strictKey); d.State != config.Stale || !d.Since.Equal(since) {
		t.Errorf("document is %+v", d)
	}
}

func TestFileEmptyAtRestartRetainsDocuments(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": strictDocument}, map[string]string{"a.yaml": badStrict()})
	r.write("a.yaml", "")
	r.start()
	r.wantStrict()
	if d := r.state(strictKey); d.State != config.Stale {
		t.Errorf("document is %+v", d)
	}
	r.write("a.yaml", badStrict())
	r.run()
	r.waitFor("it is reported", func() bool { return len(listErrors(r.store.Problems())) > 0 })
	r.wantStrict()
}

func TestDamagedLastGoodFileIsAWarning(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "{", "empty": "", "another form": `{"documents": 1}`, "no document": `{"documents": [{}]}`,
		"a bad document": `{"documents": [{"document": {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}}]}`,
		"too large":      strings.Repeat(" ", config.MaxFileSize+1),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestarts(t)
			r.write("a.yaml", badStrict())
			r.write("b.yaml", service("b", 80))
			write(t, r.lastGoodFile, text)
			r.start()
			if portOf(r.store, "b") != 80 {
				t.Error("the good documents are not in force")
			}
			if !strings.Contains(r.log.String(), "level=WARN") || !strings.Contains(r.log.String(), r.lastGoodFile) {
				t.Errorf("logged %s", r.log.String())
			}
		})
	}
}

func TestDamagedLastGoodDocumentDoesNotAffectOthers(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": strictDocument}, map[string]string{"a.yaml": badStrict()})
	data, err := os.ReadFile(r.lastGoodFile)
	if err != nil {
		t.Fatal(err)
	}
	write(t, r.lastGoodFile, strings.Replace(string(data), `"documents":[`, `"documents":[{"document":{"kind":"Nothing"}},`, 1))
	r.start()
	r.wantStrict()
	if !strings.Contains(r.log.String(), "Nothing") {
		t.Errorf("logged %s", r.log.String())
	}
}

func TestUnusableLastGoodFileIsAWarning(t *testing.T) {
	r := newRestarts(t)
	r.lastGoodFile = filepath.Join(r.lastGoodFile, "none", "last-good") // its directory does not exist
	r.write("a.yaml", strictDocument)
	r.start()
	r.run()
	r.write("a.yaml", badStrict())
	r.waitFor("it is refused", func() bool { return r.state(strictKey).State == config.Stale })
	r.stop()
	r.wantStrict()
	if n := strings.Count(r.log.String(), "cannot store the last accepted versions"); n != 1 || !strings.Contains(r.log.String(), r.lastGoodFile) {
		t.Errorf("logged %d times: %s", n, r.log.String())
	}
	r.lastGoodFile = r.dir // a directory is not readable as a file
	r.start()
	if !strings.Contains(r.log.String(), "reading the last accepted version of a refused document failed") {
		t.Errorf("logged %s", r.log.String())
	}
}

func TestLastGoodFileIsPrivate(t *testing.T) {
	r := newRestarts(t)
	write(t, r.lastGoodFile, "{}") // by another program, readable for all users
	r.breakFiles(map[string]string{"a.yaml": strictDocument}, map[string]string{"a.yaml": badStrict()})
	info, err := os.Stat(r.lastGoodFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(r.lastGoodFile)); err != nil || len(entries) != 1 {
		t.Errorf("other entries are %v, %v", entries, err)
	}
}

func TestStoreThatDoesNotRunDoesNotWriteLastGoodFile(t *testing.T) {
	r := newRestarts(t)
	r.breakFiles(map[string]string{"a.yaml": strictDocument}, map[string]string{"a.yaml": badStrict()})
	if _, err := New(Config{Paths: []string{t.TempDir()}, LastGood: r.lastGoodFile}); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wantStrict()
}

func TestPoliciesHavePriorityInAFullLastGoodFile(t *testing.T) {
	var documents []retainedDocument
	large := strings.Repeat("x", config.MaxFileSize/4)
	for i := range 6 {
		key := config.Key{Kind: config.WorkloadEntry, Namespace: "default", Name: fmt.Sprintf("w%d", i)}
		r := &config.Resource{Key: key, Spec: &networking.WorkloadEntry{Address: "1.1.1.1"}, Annotations: map[string]string{"note": large}}
		documents = append(documents, retainedDocument{acceptedVersion: acceptedVersion{resource: r}})
	}
	documents = append(documents, retainedDocument{acceptedVersion: acceptedVersion{resource: &config.Resource{Key: strictKey, Spec: &security.PeerAuthentication{}}}})
	data, left, err := encodeLastAccepted(documents)
	if err != nil || len(data) > config.MaxFileSize || left != 3 {
		t.Fatalf("%d bytes, %d left out, %v", len(data), left, err)
	}
	if !bytes.Contains(data, []byte("PeerAuthentication")) {
		t.Error("the policy is left out")
	}
}

func FuzzLastGood(f *testing.F) {
	f.Add([]byte(`{"documents":[{"file":"/a.yaml","at":{"file":"/a.yaml","line":1},"since":"2024-01-01T00:00:00Z","document":{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}}]}`))
	f.Add([]byte(`{"documents":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var l lastAccepted
		l.decode(config.Parser{}, data)
		for key, h := range l.byKey {
			if h.resource == nil || h.resource.Key != key || !h.stale {
				t.Errorf("%s holds %+v", key, h)
			}
		}
	})
}

func TestRestartRetainsDocumentsOfAnUnreadableFile(t *testing.T) {
	r := newRestarts(t)
	r.write("a.yaml", strictDocument)
	r.start()
	r.run()
	// Every read of this file fails, also for root: the first page of a process's memory is not mapped.
	path := filepath.Join(r.dir, "a.yaml")
	if err := errors.Join(os.Symlink("/proc/self/mem", path+".new"), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	r.waitFor("the document is kept", r.hasLastGoodFile)
	r.stop()
	r.start()
	r.wantStrict()
	if ps := listErrors(r.store.Problems()); len(ps) != 1 || !strings.Contains(ps[0].Message, "cannot be read") {
		t.Errorf("problems are %v", ps)
	}
}
