package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// requestTimeout is generous: only a request that hangs waits this long.
const requestTimeout = 20 * time.Second

// localMesh is a local mesh without capture, with files of its own.
type localMesh struct {
	t         *testing.T
	name, dir string
	process   *exec.Cmd
	log       testenv.Buffer
	instances map[string]mesh.InstanceStatus
}

// newLocalMesh writes a topology whose documents are in the folder config. It starts nothing.
func newLocalMesh(t *testing.T, name, topology string, documents map[string]string) *localMesh {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile-") // t.TempDir's path is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &localMesh{t: t, name: name, dir: dir}
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	m.write("../mesh.yaml", topology)
	for file, text := range documents {
		m.write(file, text)
	}
	return m
}

// write replaces a file of the folder config at once.
func (m *localMesh) write(file, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, "config", file)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		m.t.Fatal(err)
	}
}

func (m *localMesh) remove(file string) {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.dir, "config", file)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *localMesh) command(args ...string) *exec.Cmd {
	cmd := exec.Command(testenv.Bin(m.t, "pilotfish"), args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+m.dir, "XDG_STATE_HOME="+filepath.Join(m.dir, "state"))
	return cmd
}

// run runs a command of pilotfish to its end.
func (m *localMesh) run(args ...string) (status int, output string) {
	out, err := m.command(args...).CombinedOutput()
	return exitCode(err), string(out)
}

// start starts the mesh, which runs until the test ends, and waits until its workloads are ready.
func (m *localMesh) start() {
	m.t.Helper()
	m.process = m.command("up", "-f", m.topology(), "--no-capture", "--envoy-path", testenv.Envoy(m.t))
	m.process.Stdout, m.process.Stderr = &m.log, &m.log
	if err := m.process.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(m.down)
	testenv.Eventually(m.t, "the mesh is ready", func() error {
		var status mesh.Status
		out, err := m.command("status", "--name", m.name, "-o", "json").Output()
		if len(out) == 0 {
			return fmt.Errorf("no status: %w", err)
		}
		if err := json.Unmarshal(out, &status); err != nil {
			return err
		}
		m.instances = map[string]mesh.InstanceStatus{}
		for _, i := range status.Instances {
			m.instances[i.Workload] = i
		}
		if !status.Ready {
			return fmt.Errorf("not ready: %+v", status.Instances)
		}
		return nil
	})
}

func (m *localMesh) down() {
	_ = m.process.Process.Signal(syscall.SIGTERM)
	if err := m.process.Wait(); err != nil || m.t.Failed() {
		m.t.Logf("the mesh ended (%v):\n%s", err, m.log.String())
	}
}

func (m *localMesh) instance(workload string) mesh.InstanceStatus { return m.instances[workload] }
