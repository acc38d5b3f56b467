package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// fileSystem is a FUSE file system that a separate process serves. Calls block while that process is stopped.
type fileSystem struct {
	dir     string // where it is mounted
	process *os.Process
}

// mounted is the process's output after its last access to its own file system. The library makes one after mounting. A
// process that is stopped or killed during that access would wait for itself.
const mounted = "mounted"

// serveFiles is that process: it shows one directory at another.
func serveFiles(what string) error {
	from, at, _ := strings.Cut(what, " ")
	root, err := fs.NewLoopbackRoot(from)
	if err != nil {
		return err
	}
	var never time.Duration // nothing is known without asking
	server, err := fs.Mount(at, root, &fs.Options{EntryTimeout: &never, AttrTimeout: &never, NegativeTimeout: &never,
		MountOptions: mountDirectly()})
	if err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	fmt.Println(mounted)
	<-end
	return server.Unmount()
}

func newFileSystem(t *testing.T) *fileSystem {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	dir := t.TempDir()
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), role+"=files "+t.TempDir()+" "+dir)
	out := &testenv.Buffer{}
	server.Stdout, server.Stderr = out, out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	f := &fileSystem{dir: dir, process: server.Process}
	t.Cleanup(func() {
		// Abandoned writes continue once the file system answers. After the unmounting they would write to the
		// directory below.
		_ = server.Process.Signal(syscall.SIGCONT)
		for end := time.Now().Add(10 * time.Second); hasPendingCalls() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		// By force: all who wait have an answer by the kernel, whether the place is in use or not.
		_ = unix.Unmount(dir, unix.MNT_FORCE)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	testenv.Eventually(t, "the file system is mounted", func() error {
		if !strings.Contains(out.String(), mounted) {
			return fmt.Errorf("no word that it is: %s", out)
		}
		return nil
	})
	return f
}

// hasPendingCalls reports whether a goroutine of this process still waits for a file system.
func hasPendingCalls() bool {
	stacks := make([]byte, 4<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "fstimeout.(*TimeoutFS).")
}

func (f *fileSystem) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := f.process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// suspend stops the file system's process and waits until all its threads have stopped.
func (f *fileSystem) suspend(t *testing.T) {
	t.Helper()
	f.signal(t, syscall.SIGSTOP)
	testenv.Eventually(t, "the file system stands still", func() error {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", f.process.Pid))
		for _, thread := range threads {
			if text, err := os.ReadFile(thread); err == nil && !strings.Contains(string(text), ") T ") {
				return errors.New(string(text))
			}
		}
		return nil
	})
}

func (f *fileSystem) resume(t *testing.T) { f.signal(t, syscall.SIGCONT) }

// mountDirectly does without the program fusermount.
func mountDirectly() fuse.MountOptions {
	return fuse.MountOptions{DirectMountStrict: true, FsName: "pilotfish-test", Name: "test"}
}

// writeIdentity writes a new certificate of the pod, as a renewal does.
func writeIdentity(t *testing.T, root *testpki.Authority, files sds.FileConfig) (cert []byte) {
	t.Helper()
	cert, key := root.Workload(t, "spiffe://cluster.local/ns/default/sa/reviews")
	for file, text := range map[string][]byte{files.CertFile: cert, files.KeyFile: key, files.RootFile: root.PEM()} {
		writeFile(t, file, text)
	}
	return cert
}

// writeFile puts a file in its place.
func writeFile(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(file+".new", text, 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// secrets is an SDS stream that accepts every response.
type secrets struct {
	stream secretv3.SecretDiscoveryService_StreamSecretsClient
	mu     sync.Mutex
	has    map[string]string
}

func subscribeSecrets(t *testing.T, socket string, names ...string) *secrets {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &secrets{stream: stream, has: map[string]string{}}
	go s.receive(names)
	return s
}

func (s *secrets) receive(names []string) {
	request := &discoveryv3.DiscoveryRequest{TypeUrl: resource.SecretType, ResourceNames: names}
	for s.stream.Send(request) == nil {
		r, err := s.stream.Recv()
		if err != nil {
			return
		}
		s.mu.Lock()
		for _, packed := range r.Resources {
			var secret tlsv3.Secret
			if packed.UnmarshalTo(&secret) == nil {
				s.has[secret.Name] = string(secret.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) +
					string(secret.GetValidationContext().GetTrustedCa().GetInlineBytes())
			}
		}
		s.mu.Unlock()
		request.ResponseNonce, request.VersionInfo = r.Nonce, r.VersionInfo
	}
}

func (s *secrets) eventually(t *testing.T, name string, want []byte) {
	t.Helper()
	testenv.Eventually(t, "the secret "+name, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.has[name] != string(want) {
			return fmt.Errorf("%d secrets: %.80q", len(s.has), s.has[name])
		}
		return nil
	})
}

// TestHungFileSystemDelaysNoOtherCertificate: some secrets are read from the file system and the identity is written to it.
// Neither the other secrets nor the agent's end wait for it.
func TestHungFileSystemDelaysNoOtherCertificate(t *testing.T) {
	t.Parallel()
	files, dir, root := newFileSystem(t), t.TempDir(), testpki.New(t, "root")
	first, second := filepath.Join(files.dir, "certs/first.pem"), filepath.Join(files.dir, "certs/second.pem")
	writeFile(t, first, root.PEM())
	writeFile(t, second, root.PEM())
	own, out := sds.IdentityFiles(filepath.Join(dir, "identity")), sds.IdentityFiles(filepath.Join(files.dir, "output"))
	cert := writeIdentity(t, root, own)
	source, err := sds.NewFileSource(own)
	if err != nil {
		t.Fatal(err)
	}
	log, metrics := &testenv.Buffer{}, prometheus.NewRegistry()
	server, err := sds.New(sds.Config{Socket: filepath.Join(dir, "socket"), Source: source, Metrics: metrics,
		Output: sds.Output{Dir: filepath.Dir(out.CertFile)}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		cancel()
		if t.Failed() {
			t.Logf("the server said:\n%s", log)
		}
	}()
	testenv.Eventually(t, "the socket is there", func() error { _, err := os.Stat(filepath.Join(dir, "socket")); return err })
	written := func() {
		t.Helper()
		testenv.Eventually(t, "the identity is written", func() error {
			if text, err := os.ReadFile(out.CertFile); err != nil || string(text) != string(cert) {
				return fmt.Errorf("%w, %d bytes", err, len(text))
			}
			return nil
		})
	}
	before := subscribeSecrets(t, filepath.Join(dir, "socket"), sds.DefaultName, "file-root:"+first)
	before.eventually(t, sds.DefaultName, cert)
	before.eventually(t, "file-root:"+first, root.PEM())
	written()

	files.suspend(t)
	cert = writeIdentity(t, root, own)
	before.eventually(t, sds.DefaultName, cert)
	meanwhile := subscribeSecrets(t, filepath.Join(dir, "socket"), sds.DefaultName, "file-root:"+second)
	meanwhile.eventually(t, sds.DefaultName, cert)
	testenv.Eventually(t, "it is said what does not answer", func() error {
		ok, reason := server.Health()
		if stalls := readCounter(t, metrics, "pilotfish_sds_disk_stalls_total"); !ok || stalls < 2 ||
			!strings.Contains(reason, "second.pem: "+filepath.Dir(second)+": the file system does not respond") ||
			!strings.Contains(reason, filepath.Dir(out.CertFile)+": the file system does not respond") {
			return fmt.Errorf("%v, %v, %s", ok, stalls, reason)
		}
		return nil
	})

	files.resume(t)
	meanwhile.eventually(t, "file-root:"+second, root.PEM())
	written()
	other := testpki.New(t, "other")
	writeFile(t, first, other.PEM())
	before.eventually(t, "file-root:"+first, other.PEM())

	files.suspend(t)
	cert = writeIdentity(t, root, own)
	meanwhile.eventually(t, sds.DefaultName, cert)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the server does not end while the file system stands still")
	}
}

func readCounter(t *testing.T, from prometheus.Gatherer, name string) (value float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			value += family.Metric[0].GetCounter().GetValue()
		}
	}
	return value
}

// TestAgentServesWithLastGoodConfigurationOnHungFileSystem: the directory of the last accepted configuration does not
// answer.
func TestAgentServesWithLastGoodConfigurationOnHungFileSystem(t *testing.T) {
	t.Parallel()
	files := newFileSystem(t)
	plane := &controlPlane{cache: cache.NewSnapshotCache(false, anyNode{}, nil)}
	plane.set(t, "1", "127.172.0.1:80")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	upstream := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(upstream, xds.NewServer(context.Background(), plane.cache, nil))
	go func() { _ = upstream.Serve(listener) }()
	t.Cleanup(upstream.Stop)

	files.suspend(t)
	socket, metrics := filepath.Join(t.TempDir(), "XDS"), prometheus.NewRegistry()
	relay := startRelay(t, xdsproxy.Config{Socket: socket, Upstreams: []string{listener.Addr().String()}, Metrics: metrics,
		Server:   xdsproxy.Server{Plaintext: true},
		LastGood: xdsproxy.LastGood{Dirs: []string{filepath.Join(files.dir, "last-good")}}})
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	go acceptAll(stream)
	testenv.Eventually(t, "the hung disk is noticed", func() error {
		if s := relay.Status().LastGood.Storage; s == nil || !strings.Contains(s.Reason, "hangs") || readCounter(t, metrics, "pilotfish_xds_last_good_failures_total") != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	testenv.Eventually(t, "the client has its configuration", func() error {
		types := relay.Status().Types
		for _, s := range types {
			if s.Acks == 0 {
				return fmt.Errorf("%+v", s)
			}
		}
		if len(types) < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	files.resume(t)
	testenv.Eventually(t, "saving resumes with the next stream", func() error {
		again, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
		if err != nil {
			return err
		}
		go acceptAll(again)
		for range 20 { // a save is delayed by seconds
			if s := relay.Status().LastGood.Storage; s != nil && !s.Saved.IsZero() {
				return nil
			}
			time.Sleep(500 * time.Millisecond)
		}
		return fmt.Errorf("%+v", relay.Status().LastGood.Storage)
	})
	files.suspend(t) // and the end does not wait for it
}

// acceptAll subscribes to an Envoy's resource types and accepts every response.
func acceptAll(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient) {
	node := &corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc", Cluster: "a.b", UserAgentName: "envoy"}
	for _, typeURL := range []string{resource.ClusterType, resource.ListenerType} {
		if stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: node}) != nil {
			return
		}
	}
	for {
		r, err := stream.Recv()
		if err != nil || stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.TypeUrl, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce}) != nil {
			return
		}
	}
}
