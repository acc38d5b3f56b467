package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

func TestSharesWithinFiveDeviationsAreAccepted(t *testing.T) {
	for _, c := range []struct {
		v1, v2, v3 int
		right      bool
	}{
		{600, 300, 100, true}, {650, 280, 70, true}, {530, 330, 140, true},
		{333, 333, 334, false}, {700, 300, 0, false}, {500, 400, 100, false}, {600, 300, 99, false},
	} {
		evidence, err := compareShares(map[string]int{"v1": c.v1, "v2": c.v2, "v3": c.v3}, 1000, shares)
		if (err == nil) != c.right {
			t.Errorf("%+v: %s, %v", c, evidence, err)
		}
	}
}

func TestDescribeRefusalDistinguishesOutcomes(t *testing.T) {
	for _, c := range []struct {
		answer  string
		err     error
		refused bool
	}{
		{"", io.EOF, true},
		{"", &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, true},
		{"", errors.New("remote error: tls: certificate required"), true},
		{"HTTP/1.1 400 Bad Request", nil, false},
		{"", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, false},
		{"", os.ErrDeadlineExceeded, false},
	} {
		if evidence, err := describeRefusal(c.answer, c.err); (err == nil) != c.refused {
			t.Errorf("%q, %v: evidence %q, error %v", c.answer, c.err, evidence, err)
		}
	}
}

func TestParseStatReadsKernelFormat(t *testing.T) {
	p, err := parseStat(7, "7 (a) b) c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1 1")
	want := process{pid: 7, parent: 3, name: "a) b) c", start: 4242}
	if err != nil || p != want {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "7 (a", "7 a) (", "7 (a) S 3"} {
		if _, err := parseStat(7, bad); err == nil {
			t.Errorf("readProcess accepts %q", bad)
		}
	}
	self, err := readProcess(os.Getpid())
	if err != nil || self.parent != os.Getppid() || !self.isAlive() {
		t.Errorf("this process is %+v, %v", self, err)
	}
}

func TestParseTCPReadsKernelFormat(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 0101577F:3AE8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0
   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0`
	got, err := parseTCP(table)
	if err != nil || !slices.Equal(got, []netip.AddrPort{netip.MustParseAddrPort("127.87.1.1:15080")}) {
		t.Errorf("got %v, %v", got, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	had := footprint{network: netip.MustParsePrefix("127.255.0.0/16"), gateway: l.Addr().(*net.TCPAddr).AddrPort(), folders: []string{t.TempDir()}}
	left, err := had.remaining()
	if err != nil || len(left) != 2 || !strings.Contains(left[0], l.Addr().String()) {
		t.Errorf("remaining resources: %q, %v", left, err)
	}
}

func TestSocketsOfTheMeshAreFound(t *testing.T) {
	dir := t.TempDir()
	had := footprint{network: netip.MustParsePrefix("127.255.0.0/16"), folders: []string{dir}}
	for _, name := range []string{dir + "/control.sock", "@pilotfish/127.255.0.0"} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		left, err := had.remaining()
		if err != nil || !slices.Contains(left, "the socket "+name) {
			t.Errorf("remaining resources: %q, %v", left, err)
		}
		l.Close()
		if left, _ := had.remaining(); slices.Contains(left, "the socket "+name) {
			t.Errorf("the closed socket %s is still found", name)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("7 (a) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1 1")
	f.Fuzz(func(_ *testing.T, s string) { _, _ = parseStat(1, s) })
}

func FuzzParseTCP(f *testing.F) {
	f.Add("0: 0101577F:3AE8 00000000:0000 0A")
	f.Fuzz(func(_ *testing.T, s string) { _, _ = parseTCP(s) })
}

// recorder stores the checks that Run reports.
type recorder struct{ began, ended []string }

func (r *recorder) Begin(name string) { r.began = append(r.began, name) }
func (r *recorder) End(result Result) {
	r.ended = append(r.ended, fmt.Sprint(result.Check, " ", result.OK))
}

// noMesh is a mesh that is not running.
type noMesh struct{}

func (noMesh) Status(context.Context) mesh.Status { return mesh.Status{} }
func (noMesh) Dial(context.Context, string, string, string) (net.Conn, error) {
	return nil, errors.New("none")
}
func (noMesh) StopControlPlane(context.Context) error  { return errors.New("none") }
func (noMesh) StartControlPlane(context.Context) error { return errors.New("none") }

func TestFailedMeshIsStillStopped(t *testing.T) {
	stopped := false
	target := &Target{
		Mesh:      noMesh{},
		WaitReady: func(context.Context) error { return errors.New("reviews-v1 exited with status 1") },
		Stop:      func(context.Context) error { stopped = true; return nil },
	}
	var seen recorder
	results := Run(context.Background(), target, &seen)
	if !stopped || len(results) != 2 || results[0].OK || results[0].Evidence != "reviews-v1 exited with status 1" || results[1].Check != teardownCheck.name {
		t.Errorf("stopped %v, results %+v", stopped, results)
	}
	if len(seen.began) != 2 || len(seen.ended) != 2 {
		t.Errorf("reported %+v", seen)
	}
}

func TestCheckTimeoutIsReported(t *testing.T) {
	target := &Target{clients: map[string]*client{}}
	slow := check{"slow", 10 * time.Millisecond, func(ctx context.Context, _ *Target) (string, error) {
		<-ctx.Done()
		return "", errors.New("waited for ever")
	}}
	r := target.runCheck(context.Background(), slow, &recorder{})
	if r.OK || r.Evidence != "timed out (the check's timeout is 10ms): waited for ever" {
		t.Errorf("got %+v", r)
	}
}

func TestFailedRequestUnderLoadIsCounted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusServiceUnavailable) }))
	defer server.Close()
	target := &Target{clients: map[string]*client{}}
	defer target.closeClients()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l := startLoad(ctx, target.outsideClient(), server.URL, nil)
	for seen := 0; seen < 3; {
		l.mu.Lock()
		seen = l.total
		l.mu.Unlock()
		if !backoff.Sleep(ctx, time.Millisecond) {
			t.Fatal("no request was made")
		}
	}
	total, failed, first := l.stop()
	if failed != total || first != "503 (gone)" {
		t.Errorf("%d of %d failed, first %q", failed, total, first)
	}
}
