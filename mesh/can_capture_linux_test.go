package mesh

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
)

// playCanCapture prints whether this process can run a captured mesh, and which namespaces the check left open.
func playCanCapture([]string) {
	fmt.Println("can:", CanCapture())
	fds, err := os.ReadDir("/proc/self/fd")
	fail(err)
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, "net:") {
			fmt.Println("left", to)
		}
	}
}

func TestCanCaptureDetectsEachMissingCapability(t *testing.T) {
	needNamespaces(t)
	for name, capability := range map[string]uintptr{
		"none": 0, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SETGID": unix.CAP_SETGID,
		"CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	} {
		answer, err := runWithoutCapability(capability)
		if err != nil {
			t.Fatalf("without %s: %v: %s", name, err, answer)
		}
		if strings.Contains(answer, "left") {
			t.Errorf("without %s the check did not close a namespace: %s", name, answer)
		}
		want := "--capture needs root, with CAP_"
		if capability == 0 {
			want = "can: <nil>"
		}
		if !strings.Contains(answer, want) {
			t.Errorf("without %s: %s", name, answer)
		}
	}
}

// runWithoutCapability runs playCanCapture in a process without the capability. The capability 0 (CAP_CHOWN) stands
// for none, because the test does not need it.
func runWithoutCapability(capability uintptr) (answer string, err error) {
	netns.OnThread(func() {
		if err = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err == nil {
			var out []byte
			out, err = exec.Command(os.Args[0], "can-capture").CombinedOutput()
			answer = string(out)
		}
	})
	return answer, err
}
