package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
	"github.com/pilotfish-mesh/pilotfish/internal/cgroup"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/version"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

const (
	reportDir  = "reports"
	maxReports = 3 // number of reports on disk; older ones are deleted
	// maxConfigDump limits the size of Envoy's configuration in a report. maxReportSize limits the size of everything
	// else in it.
	maxConfigDump = 4 << 20
	maxReportSize = 1 << 20
	// dumpTimeout limits the request for Envoy's configuration. The request is sent shortly before the shutdown
	// deadline.
	dumpTimeout = time.Second
	// maxStartTime is how long an Envoy may take to become ready. After this time, the agent reports it as unable to
	// start.
	maxStartTime = 30 * time.Second
	// maxTerminationMessage is the maximum size of a termination message in Kubernetes.
	maxTerminationMessage = 4096
)

// crashReport describes a crash or unclean stop of Envoy. redact.JSON removes secrets from it before it is written.
type crashReport struct {
	Time    time.Time `json:"time"`
	Why     string    `json:"why"`
	Agent   string    `json:"agent"`
	Command []string  `json:"command,omitempty"`
	Envoy   envoyStatus
	End     *endStatus      `json:"end,omitempty"`
	Memory  *memoryStatus   `json:"memory,omitempty"`
	XDS     xdsproxy.Status `json:"xds"`
	// Settings are the agent's settings.
	Settings []config.Setting `json:"settings"`
	// Config is Envoy's configuration dump, if Envoy still responded. NoConfig is the reason why it is missing.
	Config   json.RawMessage `json:"config,omitempty"`
	NoConfig string          `json:"noConfig,omitempty"`
}

// memoryStatus is the memory limit and usage of the control group.
type memoryStatus struct {
	Limit uint64 `json:"limit,omitempty"`
	Usage uint64 `json:"usage,omitempty"`
}

// createCrashReport writes a report and returns its path. If it cannot be written, it logs the error and returns "".
func (e *envoySupervisor) createCrashReport(i *envoyInstance, why string, end *endStatus, config json.RawMessage, noConfig string) string {
	r := crashReport{
		Time: time.Now(), Why: why, Agent: version.String(), Command: i.args, Envoy: e.envoyStatus(), End: end,
		Memory: readMemoryStatus(), XDS: e.relay.Status(), Settings: e.Config.Settings, Config: config, NoConfig: noConfig,
	}
	file, err := e.writeReportFile(r)
	if err != nil {
		e.Logger.Warn("cannot write a crash report of Envoy", "error", err)
		return ""
	}
	e.Logger.Warn("wrote a crash report of Envoy", "file", file, "reason", why)
	return file
}

func readMemoryStatus() *memoryStatus {
	group, m := cgroup.Self(), &memoryStatus{}
	m.Limit, _ = group.MemoryLimit()
	m.Usage, _ = group.MemoryUsage()
	if *m == (memoryStatus{}) {
		return nil
	}
	return m
}

// writeReportFile writes the report atomically with mode 0600, and deletes old reports.
func (e *envoySupervisor) writeReportFile(r crashReport) (string, error) {
	dir := filepath.Join(filepath.Dir(e.bootstrapFile), reportDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	config := r.Config
	r.Config = nil
	text, err := redactedReport(r)
	if err == nil && len(text) > maxReportSize {
		r.NoConfig, r.Settings, r.XDS.Types = "omitted, with the settings and the xDS types, because the report would be too large", nil, nil
		text, err = redactedReport(r)
	}
	if err == nil && config != nil {
		r.Config = config
		text, err = redactedReport(r)
	}
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, r.Time.UTC().Format("20060102T150405.000")+".json")
	if err := atomicfile.Write(file, text); err != nil {
		return "", err
	}
	return file, removeOldReports(dir, maxReports)
}

func redactedReport(r crashReport) ([]byte, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var clean, text bytes.Buffer
	if err := redact.JSON(&clean, bytes.NewReader(raw)); err != nil {
		return nil, err
	}
	err = json.Indent(&text, clean.Bytes(), "", " ")
	return text.Bytes(), err
}

// removeOldReports deletes all but the n newest reports. The names of the reports sort by time.
func removeOldReports(dir string, n int) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json*"))
	if err != nil || len(files) <= n {
		return err
	}
	slices.Sort(files)
	for _, file := range files[:len(files)-n] {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

// dumpConfig requests the redacted configuration of an Envoy that is about to stop. If the request fails, config is nil
// and missing is the reason.
func (i *envoyInstance) dumpConfig(ctx context.Context, within time.Duration) (config json.RawMessage, missing string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var b bytes.Buffer
	if err := i.admin.RedactedConfigDump(ctx, "", maxConfigDump, &b); err != nil {
		return nil, fmt.Sprintf("Envoy did not respond: %v", err)
	}
	return b.Bytes(), ""
}

// reportBeforeEnd writes a crash report before the agent stops Envoy. It is called if Envoy was unable to become ready,
// or if the stop will cut active requests.
func (n *shutdown) reportBeforeEnd(ctx context.Context, why string) {
	config, missing := n.instance.dumpConfig(ctx, min(dumpTimeout, n.plan.Stop/2))
	n.createCrashReport(n.instance, why, nil, config, missing)
}

// describeNeverReady returns the reason if Envoy was unable to become ready. It returns "" if Envoy had less than
// maxStartTime to start.
func (n *shutdown) describeNeverReady() string {
	for _, t := range n.relay.Status().Types {
		if t.State == xdsproxy.StateRejected {
			return fmt.Sprintf("Envoy never became ready, because it rejected %s: %s", t.TypeURL, t.LastNack.Reason)
		}
	}
	if _, since := n.instance.status(); time.Since(since) > maxStartTime {
		return fmt.Sprintf("Envoy did not become ready in %v", time.Since(since).Round(time.Second))
	}
	return ""
}

// writeTerminationMessage writes the container's termination message, which `kubectl describe pod` shows.
func (e *envoySupervisor) writeTerminationMessage(end *endStatus) {
	path := e.Config.Shutdown.TerminationMessage
	info, err := os.Stat(path)
	if path == "" || err != nil || !info.Mode().IsRegular() {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Envoy %s\n", end.Text)
	for _, line := range end.Tail[max(0, len(end.Tail)-20):] {
		b.WriteString(redact.Text(line) + "\n")
	}
	text := b.String()
	if len(text) > maxTerminationMessage {
		text = strings.ToValidUTF8(text[:maxTerminationMessage], "")
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		e.Logger.Debug("cannot write the termination message", "error", err)
	}
}
