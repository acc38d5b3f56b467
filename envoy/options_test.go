package envoy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestCommandLineMatchesIstioAgent(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Options
		want string
	}{
		{
			"defaults", Options{ConfigPath: "etc/istio/proxy/envoy-rev.json", DrainTime: 45 * time.Second},
			"-c etc/istio/proxy/envoy-rev.json --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1000 " +
				"--allow-unknown-static-fields -l warning --skip-deprecated-logs --disable-hot-restart --drain-time-s 45",
		},
		{
			"everything", Options{
				ConfigPath: "x.json", ConfigYAML: "a: 1", DrainTime: 1499 * time.Millisecond, DrainStrategy: "gradual", LocalAddressIPVersion: "v6",
				FileFlushInterval: 250 * time.Millisecond, FileFlushMinSizeKB: 64, LogLevel: "info,upstream:debug", ComponentLogLevel: "misc:error",
				LogFormat: "%v", Concurrency: 3, EnableCoreDump: true, Extra: []string{"--base-id", "7"},
			},
			"-c x.json --drain-strategy gradual --local-address-ip-version v6 --file-flush-interval-msec 250 " +
				"--allow-unknown-static-fields -l info --skip-deprecated-logs --disable-hot-restart --drain-time-s 1 --file-flush-min-size-kb 64 " +
				"--component-log-level upstream:debug,misc:error --log-format %v --enable-core-dump --config-yaml a: 1 --concurrency 3 --base-id 7",
		},
		{
			"components only", Options{ConfigPath: "x", LogLevel: "http:trace"},
			"-c x --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1000 " +
				"--allow-unknown-static-fields -l warning --skip-deprecated-logs --disable-hot-restart --component-log-level http:trace",
		},
		{
			"hot restart", Options{ConfigPath: "x", HotRestart: &HotRestart{BaseID: 7, Epoch: 2, Dir: "run", ParentShutdown: 90 * time.Second}},
			"-c x --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1000 " +
				"--allow-unknown-static-fields -l warning --skip-deprecated-logs --base-id 7 --restart-epoch 2 --socket-path run/hot " +
				"--socket-mode 600 --skip-hot-restart-parent-stats --parent-shutdown-time-s 90",
		},
	} {
		if got := strings.Join(c.in.Args(), " "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestEveryEnvoyVersionAcceptsItsCommandLine(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "envoy.yaml"), []byte(staticBootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	leftOut := map[string]string{testenv.OldEnvoyVersion: "--file-flush-min-size-kb"}
	for _, version := range testenv.EnvoyVersions() {
		v, err := ParseVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{
			Version: v, ConfigPath: "envoy.yaml", ConfigYAML: "node: {id: a, cluster: b}", DrainTime: time.Second, FileFlushMinSizeKB: 64,
			LogLevel: "info,upstream:debug", ComponentLogLevel: "misc:error", LogFormat: "%v", Concurrency: 1, EnableCoreDump: true,
			Extra: []string{"--mode", "validate"},
		}
		cmd := exec.Command(testenv.EnvoyOf(t, version), o.Args()...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "OK") {
			t.Errorf("Envoy %s: %v: %s", version, err, out)
		}
		if got := strings.Join(o.UnsupportedFlags(), " "); got != leftOut[version] {
			t.Errorf("Envoy %s: left out %q, want %q", version, got, leftOut[version])
		}
	}
}
