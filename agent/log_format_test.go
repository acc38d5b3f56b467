package agent

import (
	"fmt"
	"regexp"
	"syscall"
	"testing"
)

// Tools that parse the logs of Istio's proxies must also parse those of this agent and its Envoy.
func TestAgentAndEnvoyLogInIstiosFormat(t *testing.T) {
	t.Parallel()
	const stamp = `(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\t`
	for name, c := range map[string]struct{ ip, override, envoy string }{
		"generated bootstrap": {"127.101.7.1", "", stamp + `warning\tenvoy main source/server/server\.cc:\d+\tcaught ENVOY_SIGTERM\tthread=\d+$`},
		// Envoy would not start with a second log format on its command line.
		"format of the override": {"127.101.7.2", "application_log_config: {log_format: {text_format: 'OWN %v'}}\n", `(?m)^OWN caught ENVOY_SIGTERM$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, c.ip)
			if c.override != "" {
				s.write(t, "override.yaml", c.override)
				s.env = append(s.env, "ISTIO_BOOTSTRAP_OVERRIDE=override.yaml")
			}
			r := s.start(t)
			agentLine := regexp.MustCompile(stamp + `info\tEnvoy started\tpid=\d+ path=`)
			r.eventually("Envoy answers", func() error {
				_, _, err := r.http("GET", "15000/ready")
				if err == nil && !agentLine.MatchString(r.out.String()) {
					err = fmt.Errorf("no line of the agent matches %s", agentLine)
				}
				return err
			})
			r.signal(syscall.SIGTERM)
			r.checkExit(0, "")
			if line := regexp.MustCompile(c.envoy); !line.MatchString(r.out.String()) {
				t.Errorf("no line of Envoy matches %s:\n%s", line, r.out.String())
			}
		})
	}
}
