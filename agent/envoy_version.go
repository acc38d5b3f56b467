package agent

import (
	"context"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// The interval between queries of a starting Envoy's version grows from minVersionPoll to maxVersionPoll.
	minVersionPoll, maxVersionPoll = 10 * time.Millisecond, 200 * time.Millisecond
	// maxVersionWait is how long an Envoy may start before the agent executes its binary to query the version.
	maxVersionWait = 10 * time.Second
	// unsuitableStopTimeout is the time between SIGTERM and SIGKILL for an Envoy of an unsupported version.
	unsuitableStopTimeout = 2 * time.Second
)

// find returns the Envoy binary to start. It executes the binary to query its version only if the start depends on the
// version, because the query lasts half as long as a start of Envoy.
func (e *envoySupervisor) find(ctx context.Context) (envoy.Binary, error) {
	o := e.Config.Envoy.FindOptions()
	o.DeferVersion = e.Config.Bootstrap.CustomFiles() == "" && e.Config.Proxy.GetFileFlushMinSizeKb() == 0
	return envoy.Find(ctx, o)
}

func (e *envoySupervisor) logStart(binary envoy.Binary) {
	if binary.Version == (envoy.Version{}) {
		e.Logger.Info("starting Envoy", "path", binary.Path, "source", binary.Source)
		return
	}
	e.Logger.Info("starting Envoy", "path", binary.Path, "version", binary.Version, "source", binary.Source)
	if !binary.Unconfirmed {
		e.warnOfAdvisories(binary)
	}
}

// warnOfAdvisories logs the known vulnerabilities of an Envoy version.
func (e *envoySupervisor) warnOfAdvisories(binary envoy.Binary) {
	report := binary.Version.Advisories()
	if report.IsEmpty() || e.Config.Envoy.IgnoreAdvisories {
		return
	}
	e.Logger.Warn("this Envoy has known vulnerabilities", "version", binary.Version, "advisories", report.Attacks(),
		"remedy", report.Remedy()+"; ENVOY_ADVISORY_WARNING=false silences this for a build with backported fixes")
}

// checkVersion confirms the version of a started Envoy. If the version is not supported, or the program is not an Envoy,
// it records the reason and stops the process.
func (e *envoySupervisor) checkVersion(ctx context.Context, i *envoyInstance) {
	file := i.binary()
	if !file.Unconfirmed {
		return
	}
	o := e.Config.Envoy.FindOptions()
	v, ok := i.awaitVersion(ctx)
	switch {
	case ok:
		e.recordVersion(i, file, func() (envoy.Binary, error) { return o.ConfirmVersion(file, v) })
	case i.isRunning() && ctx.Err() == nil:
		e.recordVersion(i, file, func() (envoy.Binary, error) { return o.QueryVersion(ctx, file) })
	}
}

// awaitVersion polls the admin interface for the version. ok is false if the process exits, does not respond within
// maxVersionWait, or reports no valid version.
func (i *envoyInstance) awaitVersion(ctx context.Context) (v envoy.Version, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, maxVersionWait)
	defer cancel()
	for pace := minVersionPoll; ; pace = min(pace*3/2, maxVersionPoll) {
		info, err := i.admin.ServerInfo(ctx)
		if err == nil {
			v, err = envoy.ParseVersion(info.Version)
			return v, err == nil
		}
		select {
		case <-i.process.Done():
			return v, false
		case <-ctx.Done():
			return v, false
		case <-time.After(pace):
		}
	}
}

func (i *envoyInstance) isRunning() bool {
	select {
	case <-i.process.Done():
		return false
	default:
		return true
	}
}

// recordVersion records the result of confirm. If it is an error, recordVersion stops the Envoy.
func (e *envoySupervisor) recordVersion(i *envoyInstance, before envoy.Binary, confirm func() (envoy.Binary, error)) {
	file, err := confirm()
	if !i.setVersion(file, err) {
		return
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), unsuitableStopTimeout)
		defer cancel()
		i.process.Stop(ctx)
		return
	}
	if before.Version == (envoy.Version{}) {
		e.Logger.Info("Envoy reported its version", "version", file.Version, "pid", i.process.PID())
	} else if before.Version != file.Version {
		e.Logger.Warn("the version of the running Envoy differs from the version in its file envoy.version", "version", file.Version, "fileVersion", before.Version)
	}
	e.warnOfAdvisories(file)
}

// setVersion sets file, the binary with its confirmed version, or err, the reason why the binary is not supported. It
// returns false if either was set before.
func (i *envoyInstance) setVersion(file envoy.Binary, err error) (first bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.versionKnown:
		return false
	default:
	}
	if i.versionErr = err; err == nil {
		i.file = file
	}
	close(i.versionKnown)
	return true
}

// addVersionProblem returns c if the version is supported. It returns an unhealthy condition if the version is not
// supported, or not known when ctx ends.
func (i *envoyInstance) addVersionProblem(ctx context.Context, c health.Condition) health.Condition {
	select {
	case <-i.versionKnown:
	case <-ctx.Done():
		return health.Condition{Reason: "Envoy has not reported its version yet"}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.versionErr != nil {
		return health.Condition{Reason: i.versionErr.Error()}
	}
	return c
}

// checkEndedVersion returns the reason if an Envoy has ended because its version is not supported or it is not an Envoy.
// If the version is not known, it executes the binary.
func (e *envoySupervisor) checkEndedVersion(ctx context.Context, i *envoyInstance) error {
	select {
	case <-i.versionKnown:
	default:
		file, err := e.Config.Envoy.FindOptions().QueryVersion(ctx, i.binary())
		if ctx.Err() == nil {
			i.setVersion(file, err)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.versionErr
}

// explainStartError returns err, the error of starting binary. If binary is not a supported Envoy, it returns that
// reason instead.
func (e *envoySupervisor) explainStartError(ctx context.Context, binary envoy.Binary, err error) error {
	if !binary.Unconfirmed {
		return err
	}
	if _, unsuitable := e.Config.Envoy.FindOptions().QueryVersion(ctx, binary); unsuitable != nil {
		return unsuitable
	}
	return err
}

// versionText returns the version; empty if it is not known.
func versionText(b envoy.Binary) string {
	if b.Version == (envoy.Version{}) {
		return ""
	}
	return b.Version.String()
}
