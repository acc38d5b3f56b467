package agent

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// The key is sent to Envoy over the SDS socket only. It must not be in any file, log, response, command line or crash
// report.
func TestKeyLeavesTheAgentOnlyToEnvoy(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.9.1")
	s.cp.start(t)
	s.args = append(s.args, "--log_output_level", "debug", "--proxyLogLevel", "debug")
	r := s.start(t)
	r.waitReady()
	r.eventually("Envoy shows its identity", func() error { return checkIdentity(s, shopIdentity) })
	key := servedKey(t, s)

	for _, path := range []string{
		"15020/debug/certz", "15020/debug/xdsz", "15020/debug/xdsz/history", "15020/debug/envoyz", "15020/debug/ndsz", "15020/debug/config",
		"15020/debug/pprof/cmdline", "15020/metrics", "15020/healthz/ready?format=json", "15020/healthz/live",
		"15000/config_dump?include_eds", "15000/certs", "15000/clusters", "15000/server_info",
	} {
		_, body, err := r.http("GET", path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		key.checkNotIn(t, path, body)
	}
	for _, pid := range []int{r.cmd.Process.Pid, r.envoy()} {
		for _, name := range []string{"cmdline", "environ"} {
			path := fmt.Sprintf("/proc/%d/%s", pid, name)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			key.checkNotIn(t, path, string(text))
		}
	}
	key.checkNotInFiles(t, s.dir)

	killProcess(t, r.envoy(), syscall.SIGABRT)
	r.expectExit(128 + int(syscall.SIGABRT))
	if len(s.reports(t)) != 1 {
		t.Error("there is no report of the crash")
	}
	key.checkNotInFiles(t, s.dir)
	key.checkNotIn(t, "the log", r.out.String())
}

// privateKey identifies a key in any encoding: by its lines in PEM, and by its bytes.
type privateKey struct{ lines, raw []string }

// servedKey requests the workload's key as Envoy does.
func servedKey(t *testing.T, s *agentSetup) (k privateKey) {
	t.Helper()
	answer, err := fetch(t, filepath.Join(s.dir, "var/run/secrets/workload-spiffe-uds/socket"), "default")
	if err != nil || len(answer.GetResources()) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	var secret tlsv3.Secret
	if err := answer.Resources[0].UnmarshalTo(&secret); err != nil {
		t.Fatal(err)
	}
	text := secret.GetTlsCertificate().GetPrivateKey().GetInlineBytes()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("the agent serves no key")
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); len(line) >= 20 && !strings.HasPrefix(line, "-----") {
			k.lines = append(k.lines, line)
		}
	}
	if len(k.lines) == 0 {
		t.Fatalf("the key has no lines: %s", block.Type)
	}
	// In this encoding of an EC key, these 32 bytes are the secret. The rest is public.
	secretBytes := block.Bytes[7:39]
	k.raw = []string{string(secretBytes), fmt.Sprintf("%x", secretBytes)}
	return k
}

func (k privateKey) checkNotIn(t *testing.T, what, text string) {
	t.Helper()
	for _, part := range append(k.lines, k.raw...) {
		if strings.Contains(text, part) {
			t.Errorf("the private key is in %s", what)
			return
		}
	}
	if strings.Contains(text, "PRIVATE KEY") {
		t.Errorf("a private key is in %s", what)
	}
}

func (k privateKey) checkNotInFiles(t *testing.T, dir string) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the process has exited meanwhile
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		seen++
		k.checkNotIn(t, path, string(text))
		return nil
	})
	if err != nil || seen < 4 { // at least bootstrap, last accepted configuration, token and roots
		t.Errorf("%d files were looked at, %v", seen, err)
	}
}
