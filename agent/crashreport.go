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

	"github.com/pilotfish-mesh/pilotfish/internal/cgroup"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/version"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

const (
	reportDir   = "reports"
	reportFiles = 3 // the newest are kept
	// mostConfig bounds Envoy's configuration in a report, and mostReportSize all the rest.
	mostConfig     = 4 << 20
	mostReportSize = 1 << 20
	// dumpTime bounds the question for Envoy's configuration: it is asked when the end is near.
	dumpTime = time.Second
	// longStart is when an Envoy that has served nobody yet is one that does not get ready.
	longStart = 30 * time.Second
	// mostTermination is how much Kubernetes shows of a container's last words.
	mostTermination = 4096
)

// crashReport is all that is known of a bad end. It goes through redact.JSON before it is written.
type crashReport struct {
	Time    time.Time `json:"time"`
	Why     string    `json:"why"`
	Agent   string    `json:"agent"`
	Command []string  `json:"command,omitempty"`
	Envoy   EnvoyStatus
	End     *EndStatus      `json:"end,omitempty"`
	Memory  *memoryStatus   `json:"memory,omitempty"`
	XDS     xdsproxy.Status `json:"xds"`
	// Settings are the agent's own.
	Settings []Setting `json:"settings"`
	// Config is Envoy's configuration, if it could still be asked for it; NoConfig says why not.
	Config   json.RawMessage `json:"config,omitempty"`
	NoConfig string          `json:"noConfig,omitempty"`
}

// memoryStatus is that of the container, or of whatever else the control group is for.
type memoryStatus struct {
	Limit uint64 `json:"limit,omitempty"`
	Usage uint64 `json:"usage,omitempty"`
}

// report writes down what is known of a bad end, and gives the file. A report that cannot be written is no reason for
// anything else to fail.
func (e *envoyPart) report(i *instance, why string, end *EndStatus, config json.RawMessage, noConfig string) string {
	r := crashReport{
		Time: time.Now(), Why: why, Agent: version.String(), Command: i.args, Envoy: e.EnvoyStatus(), End: end,
		Memory: memoryNow(), XDS: e.relay.Status(), Settings: e.Config.Settings, Config: config, NoConfig: noConfig,
	}
	file, err := e.writeReport(r)
	if err != nil {
		e.Logger.Warn("no report of the end was written", "error", err)
		return ""
	}
	e.Logger.Warn("report of the end written", "file", file, "why", why)
	return file
}

func memoryNow() *memoryStatus {
	group, m := cgroup.Self(), &memoryStatus{}
	m.Limit, _ = group.MemoryLimit()
	m.Usage, _ = group.MemoryUsage()
	if *m == (memoryStatus{}) {
		return nil
	}
	return m
}

// writeReport writes the report as a whole, for the agent's user alone, and deletes those that are too old.
func (e *envoyPart) writeReport(r crashReport) (string, error) {
	dir := filepath.Join(filepath.Dir(e.file), reportDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	config := r.Config
	r.Config = nil
	text, err := redactedReport(r)
	if err == nil && len(text) > mostReportSize {
		r.NoConfig, r.Settings, r.XDS.Types = "left out, and so are settings and types: the report is too large", nil, nil
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
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return "", err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return "", err
	}
	return file, keepNewest(dir, reportFiles)
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

// keepNewest deletes all but the newest reports; their names are in the order of time.
func keepNewest(dir string, n int) error {
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

// dump asks an Envoy that is about to end for its configuration, without secrets.
func (i *instance) dump(ctx context.Context, within time.Duration) (config json.RawMessage, missing string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var b bytes.Buffer
	if err := i.admin.RedactedConfigDump(ctx, "", mostConfig, &b); err != nil {
		return nil, fmt.Sprintf("Envoy could not be asked: %v", err)
	}
	return b.Bytes(), ""
}

// reportBeforeEnd writes a report while Envoy can still be asked, when it is about to end badly: with requests that are
// cut, or without ever having become ready.
func (n *ending) reportBeforeEnd(ctx context.Context, why string) {
	config, missing := n.i.dump(ctx, min(dumpTime, n.plan.Stop/2))
	n.report(n.i, why, nil, config, missing)
}

// neverReady says why an Envoy that has served nobody is one that could not, rather than one that is stopped early.
func (n *ending) neverReady() string {
	for _, t := range n.relay.Status().Types {
		if t.State == xdsproxy.StateRejected {
			return fmt.Sprintf("it never became ready: it rejected %s: %s", t.TypeURL, t.LastNack.Reason)
		}
	}
	if _, since := n.i.status(); time.Since(since) > longStart {
		return fmt.Sprintf("it did not become ready in %v", time.Since(since).Round(time.Second))
	}
	return ""
}

// lastWords are what Kubernetes shows of a container that ended: kubectl describe pod has them.
func (e *envoyPart) lastWords(end *EndStatus) {
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
	if len(text) > mostTermination {
		text = strings.ToValidUTF8(text[:mostTermination], "")
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		e.Logger.Debug("the last words were not written", "error", err)
	}
}
