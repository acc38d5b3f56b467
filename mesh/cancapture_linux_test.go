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

// playCanCapture says whether this process can run a captured mesh, and which namespaces the question left.
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

func TestEachPrivilegeThatIsMissingIsKnownBeforehand(t *testing.T) {
	needNamespaces(t)
	for name, capability := range map[string]uintptr{
		"none": 0, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SETGID": unix.CAP_SETGID,
		"CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	} {
		said, err := sayWithout(capability)
		if err != nil {
			t.Fatalf("without %s: %v: %s", name, err, said)
		}
		if strings.Contains(said, "left") {
			t.Errorf("without %s a namespace is left: %s", name, said)
		}
		want := "it takes root, with CAP_"
		if capability == 0 {
			want = "can: <nil>"
		}
		if !strings.Contains(said, want) {
			t.Errorf("without %s: %s", name, said)
		}
	}
}

// sayWithout plays that role in a process without a capability; 0, which a root of tests can do without, is none.
func sayWithout(capability uintptr) (said string, err error) {
	netns.OnThread(func() {
		if err = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err == nil {
			var out []byte
			out, err = exec.Command(os.Args[0], "can-capture").CombinedOutput()
			said = string(out)
		}
	})
	return said, err
}
