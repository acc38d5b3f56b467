package sandbox

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

const imageVersion = "1.2.3"

// network returns the node's network namespace, in which loopback is up.
func (n *node) network(t *testing.T) *testns.Namespace {
	t.Helper()
	handle, err := netns.GetFromPid(n.process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = handle.Close() })
	net := &testns.Namespace{Handle: handle}
	net.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	return net
}

// startRegistry starts an image registry on loopback, on that of the test and on that of the node.
func startRegistry(t *testing.T, network *testns.Namespace) (outside, onNode string) {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	serve := func(l net.Listener) string {
		server := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}}
		server.Start()
		t.Cleanup(server.Close)
		return l.Addr().String()
	}
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var second net.Listener
	if err := network.Run(func() (err error) {
		second, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return serve(first), serve(second)
}

// pushImages builds the project's images of the programs under test, and pushes them to a registry. It returns the directory
// of their archives.
func pushImages(t *testing.T, registry string) (archives string) {
	t.Helper()
	scripts := filepath.Join(testenv.Root(), "scripts")
	if out, err := exec.Command(filepath.Join(scripts, "libc.sh"), runtime.GOARCH).CombinedOutput(); err != nil {
		t.Skipf("no C library for the image: %v: %s", err, out)
	}
	build := t.TempDir()
	dir := filepath.Join(build, runtime.GOARCH)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pilotfish-agent", "pilotfish-iptables", "pilotfish-cni", "pilotfish-cni-install", "pilotfish-cni-tombstone"} {
		if err := os.Symlink(testenv.Bin(t, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	archives = t.TempDir()
	c := exec.Command(filepath.Join(scripts, "images.sh"), build, imageVersion, archives, "--push", registry+"/pilotfish")
	c.Env = append(os.Environ(), "ENVOY_VERSION="+testenv.EnvoyVersion, "SOURCE_DATE_EPOCH=1700000000", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("building and pushing the images: %v\n%s", err, out)
	}
	return archives
}

// pull lets the runtime pull an image, and returns its reference.
func (n *node) pull(t *testing.T, reference string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pulled, err := n.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: reference}})
	if err != nil {
		t.Fatalf("pulling %s: %v", reference, err)
	}
	return pulled.ImageRef
}

// waitExit waits until a container has ended, and returns its exit code and its log.
func (s *sandbox) waitExit(t *testing.T, container string) (code int32, log string) {
	t.Helper()
	testenv.Eventually(t, "the container exits", func() error {
		answer, err := s.node.runtime.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: container})
		if err != nil {
			return err
		}
		code = answer.Status.ExitCode
		text, _ := os.ReadFile(answer.Status.LogPath)
		log = string(text)
		if answer.Status.State != cri.ContainerState_CONTAINER_EXITED {
			return errors.New("it is " + answer.Status.State.String())
		}
		return nil
	})
	return code, log
}
