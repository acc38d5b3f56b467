package agent

import "testing"

func TestUnknownCommandIsUsageError(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nonsense"}, {"istio-clean-iptables"}, {"--nonsense"}, {"xds", "nonsense"}} {
		s := &agentSetup{dir: t.TempDir(), args: args, env: []string{asAgent + "=1"}}
		r := s.start(t)
		r.checkExit(2, "pilotfish-agent: unknown ")
	}
}

// TestEveryCommandAcceptsGlobalFlags tests Istio's global flags before and after the command name, also with separate
// values.
func TestEveryCommandAcceptsGlobalFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--log_output_level", "default:debug", "--vklog", "3", "proxy", "sidecar", "--dry-run"},
		{"proxy", "sidecar", "--vklog", "3", "--tokenManagerPlugin", "none", "--log_caller", "all", "--dry-run"},
		{"--log_as_json", "version", "--log_target", "stdout"},
		{"completion", "bash", "--log_stacktrace_level", "default:none"},
		{"config", "--vklog=3"},
	} {
		s := &agentSetup{dir: t.TempDir(), args: args, env: []string{asAgent + "=1"}}
		r := s.start(t)
		r.checkExit(0, "")
	}
	s := &agentSetup{dir: t.TempDir(), args: []string{"--log_as_json", "wait", "--vklog", "3", "--timeoutSeconds", "1", "--periodMillis", "100", "--url", "http://127.0.0.1:1/"}, env: []string{asAgent + "=1"}}
	s.start(t).checkExit(255, "not ready after 1s")
}
