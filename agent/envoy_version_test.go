package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestEnvoyStartsBeforeItsVersionIsKnown(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.14.1")
	calls, cache := filepath.Join(s.dir, "calls"), t.TempDir()
	program := s.program(t, "envoy", fmt.Sprintf("#!/bin/sh\necho \"$1\" >>%s\nexec %s \"$@\"\n", calls, testenv.Envoy(t)))
	s.env = append(s.env, "ENVOY_PATH="+program, "XDG_CACHE_HOME="+cache)
	r := s.startReady(t)
	r.waitOutput("Envoy reported its version")
	for _, want := range []string{"Envoy reported its version", "version=" + testenv.EnvoyVersion} {
		if len(linesWith(r.out.String(), want)) != 1 {
			t.Errorf("the log does not contain %q exactly once:\n%s", want, r.out)
		}
	}
	if got, err := os.ReadFile(calls); err != nil || string(got) != "-c\n" {
		t.Errorf("the agent executed Envoy with the first arguments %q (%v), want only -c", got, err)
	}
	if _, page, err := r.http("GET", "15020/debug/envoyz"); err != nil || !strings.Contains(page, `"version": "`+testenv.EnvoyVersion+`"`) {
		t.Errorf("/debug/envoyz does not show the version: %s, %v", page, err)
	}
	if known, err := os.ReadFile(filepath.Join(cache, "pilotfish/envoy/versions.json")); err != nil || !strings.Contains(string(known), testenv.EnvoyVersion) {
		t.Errorf("the version is not cached: %s, %v", known, err)
	}
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
}

// A version file that does not match the binary must not hide the version.
func TestVersionFileIsVerified(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.14.2")
	program := s.program(t, "envoy", fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", testenv.EnvoyOf(t, testenv.OldEnvoyVersion)))
	s.write(t, "envoy.version", "\nenvoy  version: 0/1.37.5/Clean/RELEASE/BoringSSL\n")
	s.env = append(s.env, "ENVOY_PATH="+program, "XDG_CACHE_HOME="+t.TempDir())
	r := s.startReady(t)
	r.waitOutput(" advisories=") // the last line about the version
	for _, want := range []string{"starting Envoy\tpath=" + program + " version=1.37.5", "differs from the version in its file envoy.version", "version=1.36.4 advisories="} {
		if len(linesWith(r.out.String(), want)) != 1 {
			t.Errorf("the log does not contain %q exactly once:\n%s", want, r.out)
		}
	}
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
}

// oldEnvoy runs an Envoy whose admin interface reports version 1.35.9.
const oldEnvoy = `cat > old.yaml <<'E'
static_resources:
  listeners:
  - address: {socket_address: {address: ADDRESS, port_value: 15000}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: a
          http_filters: [{name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config:
            virtual_hosts:
            - {name: a, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: '{"version": "0/1.35.9/Clean/RELEASE/BoringSSL"}'}}}]}
E
exec ENVOY -c old.yaml --disable-hot-restart`

const oldVersion = `[ "$1" != --version ] || { echo "envoy  version: 0/1.35.9/Clean/RELEASE/BoringSSL"; exit; }
`

func TestUnsuitableEnvoyIsReportedAfterItsStart(t *testing.T) {
	for name, c := range map[string]struct {
		address, program string
		want             []string
	}{
		"old and running":     {"127.155.15.1", "#!/bin/sh\n" + oldVersion + oldEnvoy, []string{"Envoy 1.35.9 at", "is too old, 1.36.0 or newer is needed"}},
		"old and exits":       {"127.155.15.2", "#!/bin/sh\n" + oldVersion + "exit 1", []string{"Envoy 1.35.9 at", "is too old, 1.36.0 or newer is needed"}},
		"another program":     {"127.155.15.3", "#!/bin/sh\necho Laravel Envoy 2.10", []string{"cannot be used as Envoy", "Laravel Envoy 2.10"}},
		"another, that waits": {"127.155.15.4", "#!/bin/sh\n[ \"$1\" != --version ] || exit 7\nsleep 600", []string{"cannot be used as Envoy", "exit status 7"}},
		"not an executable":   {"127.155.15.5", "\x7fELF and more", []string{"cannot be used as Envoy", "exec format error"}},
		"Envoy that exits":    {"127.155.15.6", "#!/bin/sh\n[ \"$1\" != --version ] || exec ENVOY --version\nexit 3", []string{"Envoy ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, c.address)
			text := strings.NewReplacer("ADDRESS", c.address, "ENVOY", testenv.Envoy(t)).Replace(c.program)
			s.env = append(s.env, "ENVOY_PATH="+s.program(t, "program", text), "XDG_CACHE_HOME="+t.TempDir())
			s.cp.start(t)
			r := s.start(t)
			code := 127
			if strings.Contains(c.want[0], "ended") {
				code = 3
			}
			r.checkExit(code)
			for _, want := range c.want {
				if !strings.Contains(r.out.String(), want) {
					t.Errorf("the log does not contain %q:\n%s", want, r.out)
				}
			}
		})
	}
}
