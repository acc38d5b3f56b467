package tombstone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

func TestADDReturnsThePreviousResult(t *testing.T) {
	for in, want := range map[string]string{
		`{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}}`: `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		`{"cniVersion":"0.4.0","name":"n"}`: `{"cniVersion":"0.4.0"}`,
	} {
		var out bytes.Buffer
		if code := Run(Call{Command: "ADD", In: strings.NewReader(in), Out: &out}); code != 0 || strings.TrimSpace(out.String()) != want {
			t.Errorf("%d %s", code, out.String())
		}
	}
	var out bytes.Buffer
	if code := Run(Call{Command: "ADD", In: strings.NewReader("{"), Out: &out}); code != 1 || !json.Valid(out.Bytes()) {
		t.Errorf("%d %s", code, out.String())
	}
}

func TestOtherCommandsSucceedWithoutEffect(t *testing.T) {
	for _, command := range []string{"CHECK", "STATUS", "VERSION"} {
		var out bytes.Buffer
		if code := Run(Call{Command: command, In: strings.NewReader(`{"cniVersion":"1.1.0"}`), Out: &out}); code != 0 {
			t.Errorf("%s: %d %s", command, code, out.String())
		}
	}
}

// The test adds and deletes sandboxes with libcni, with the tombstone at the plugin's path.
func TestTombstoneRemovesItselfWithTheLastSandbox(t *testing.T) {
	dir := t.TempDir()
	self := filepath.Join(dir, "pilotfish-cni")
	if err := os.WriteFile(self, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"pilotfish-cni"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	network := libcni.NewCNIConfigWithCacheDir([]string{dir}, dir, &call{self: self, results: filepath.Join(dir, "results")})
	sandboxes := []*libcni.RuntimeConf{
		{ContainerID: "c1", NetNS: "/var/run/netns/c1", IfName: "eth0"},
		{ContainerID: "c2", NetNS: "/var/run/netns/c2", IfName: "eth0"},
	}
	for _, s := range sandboxes {
		if _, err := network.AddNetworkList(t.Context(), list, s); err != nil {
			t.Fatal(err)
		}
	}
	if named, err := CountReferences(filepath.Join(dir, "results"), "pilotfish-cni", ""); named != 2 || err != nil {
		t.Fatalf("%d %v", named, err)
	}
	if named, _ := CountReferences(filepath.Join(dir, "results"), "other-cni", ""); named != 0 {
		t.Error(named)
	}
	for i, s := range sandboxes {
		if _, err := os.Stat(self); err != nil {
			t.Fatalf("before the deletion of sandbox %d: %v", i, err)
		}
		if err := network.DelNetworkList(t.Context(), list, s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(self); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tombstone's binary was not removed: %v", err)
	}
}

// call is a libcni invoker that runs the tombstone in the test's process.
type call struct{ self, results string }

func (c *call) ExecPlugin(_ context.Context, _ string, stdin []byte, environ []string) ([]byte, error) {
	var out bytes.Buffer
	run := Call{In: bytes.NewReader(stdin), Out: &out, Self: c.self, Results: c.results}
	for _, e := range environ {
		if v, found := strings.CutPrefix(e, "CNI_COMMAND="); found {
			run.Command = v
		}
		if v, found := strings.CutPrefix(e, "CNI_CONTAINERID="); found {
			run.ContainerID = v
		}
	}
	if code := Run(run); code != 0 {
		return nil, errors.New(out.String())
	}
	return out.Bytes(), nil
}

func (c *call) FindInPath(string, []string) (string, error) { return c.self, nil }

func (c *call) Decode(text []byte) (version.PluginInfo, error) {
	return new(version.PluginDecoder).Decode(text)
}
