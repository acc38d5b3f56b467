package demo

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/check"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func TestWriteExampleIsValidAndOverwritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shop")
	var out bytes.Buffer
	if err := (options{write: dir}).run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	topology, err := topology.Load(filepath.Join(dir, topologyFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.CheckFiles(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "pilotfish up -f "+filepath.Join(dir, topologyFile)) {
		t.Errorf("printed %s", out.String())
	}
	if err := os.WriteFile(filepath.Join(dir, topologyFile), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeExample(dir); err == nil || !strings.Contains(err.Error(), "not overwritten") {
		t.Errorf("got %v", err)
	}
	if data, _ := os.ReadFile(filepath.Join(dir, topologyFile)); string(data) != "mine" {
		t.Error("the user's file was overwritten")
	}
}

func TestShellWordQuotesPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/tmp/a-b_1/reviews.yaml": "/tmp/a-b_1/reviews.yaml", "/tmp/my files/a": "'/tmp/my files/a'", "it's $HOME": `'it'\''s $HOME'`, "": "''",
	} {
		if got := shellWord(path); got != want {
			t.Errorf("%q became %s, want %s", path, got, want)
		}
	}
}

func TestPortInUseNamesOwnerAndFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("TMPDIR", t.TempDir())
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	s, err := newShop(options{port: port, check: true, envoyPath: testenv.Envoy(t), capture: mesh.CaptureFlags{Off: true}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s.start(ctx)
	if err := s.WaitReady(ctx); err == nil || !strings.Contains(err.Error(), "--port") || !strings.Contains(err.Error(), "demo.test") {
		t.Errorf("got %v", err)
	}
	_ = s.stop(ctx)
	if left, _ := os.ReadDir(os.TempDir()); len(left) != 0 {
		t.Errorf("remaining files: %v", left)
	}
}

func TestGatewayUsesRequestedPort(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shop")
	if err := writeExample(dir); err != nil {
		t.Fatal(err)
	}
	topology, err := topology.Load(filepath.Join(dir, topologyFile))
	if err != nil {
		t.Fatal(err)
	}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address, err := publishGateway(topology, port)
	if err != nil || address.Port() != port || topology.Workloads[0].Ports[0].Publish != address {
		t.Errorf("published at %v, %v", address, err)
	}
}

func TestTableInPipeHasOneLinePerRow(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out)
	table.head()
	table.Begin("weights over 1,000 requests")
	table.End(check.Result{Check: "weights over 1,000 requests", OK: true, Evidence: strings.Repeat("many words ", 30)})
	table.End(check.Result{Check: "clean shutdown", Evidence: "left\nprocess 7 (envoy)"})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || strings.ContainsAny(out.String(), "\x1b\r") {
		t.Errorf("printed %q", out.String())
	}
	if !strings.Contains(lines[1], "✓") || !strings.Contains(lines[2], "✗  left process 7 (envoy)") {
		t.Errorf("printed %q", out.String())
	}
}

func TestTableOnTerminalWrapsEvidence(t *testing.T) {
	got := terminal.Format{Columns: 42}.WrapWords("one two three four five six seven eight nine ten eleven twelve", 10)
	want := "one two three four five six\n          seven eight nine ten eleven\n          twelve"
	if got != want {
		t.Errorf("folded to %q", got)
	}
}

func TestIncompatibleFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-o", "json"}, {"--logs", "x"}, {"--check", "-o", "xml"}, {"--check", "--dir", "x"}, {"--dir", "x", "--write", "y"}, {"more"}} {
		c := NewCommand()
		c.SetArgs(args)
		c.SetOut(&bytes.Buffer{})
		if err := c.Execute(); err == nil {
			t.Errorf("the flags %v were accepted", args)
		}
	}
}

func TestLogsAreWrittenOnRequest(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	k := &eventLog{events: []mesh.Event{{Kind: mesh.Log, Instance: "page-v1", Origin: mesh.OriginWorkload, Line: "answered"}}}
	dir, err := k.write("", []check.Result{{Check: "clean shutdown"}})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "mesh.log"))
	if err != nil || !strings.Contains(string(log), "page-v1") || !strings.Contains(string(log), "answered") {
		t.Errorf("the log contains %q, %v", log, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "results.json")); err != nil || !strings.Contains(string(data), "clean shutdown") {
		t.Errorf("results.json contains %q, %v", data, err)
	}
}
