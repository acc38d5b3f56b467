package envoy

import (
	"strconv"
	"strings"
	"time"
)

// Options become Envoy's command line. The zero value of a field leaves its flag out, unless said otherwise.
type Options struct {
	// Version is the Envoy's that gets the command line: what it does not know is left out. The zero value knows all.
	Version Version
	// ConfigPath is the bootstrap file.
	ConfigPath string
	// ConfigYAML is merged over the bootstrap file.
	ConfigYAML string
	// DrainTime is how long listeners drain; whole seconds.
	DrainTime time.Duration
	// DrainStrategy is "immediate" or "gradual"; "immediate" if empty: each response then asks its client to close,
	// while the gradual way leaves it to chance.
	DrainStrategy string
	// LocalAddressIPVersion is "v4" or "v6"; "v4" if empty.
	LocalAddressIPVersion string
	// FileFlushInterval is how often access logs are written out; 1 second if zero.
	FileFlushInterval time.Duration
	// FileFlushMinSizeKB is how much is gathered before access logs are written out.
	FileFlushMinSizeKB int
	// LogLevel is a level, optionally followed by levels of components: "warning" or "info,upstream:debug". "warning" if empty.
	LogLevel string
	// ComponentLogLevel is "component:level,…".
	ComponentLogLevel string
	// LogFormat is in spdlog's syntax.
	LogFormat string
	// Concurrency is the number of worker threads; 0 lets Envoy take one for each core.
	Concurrency int
	// EnableCoreDump lets Envoy dump core.
	EnableCoreDump bool
	// HotRestart lets another Envoy take over from this one; nil disables it, as Istio's agent does.
	HotRestart *HotRestart
	// Extra goes to the end of the command line as it is.
	Extra []string
}

// since is the first release that knows a flag, where that is newer than MinimumVersion: Envoy refuses to start with a flag
// that it does not know.
var since = map[string]Version{
	flushMinSize: {Major: 1, Minor: 37},
}

const flushMinSize = "--file-flush-min-size-kb"

func (o Options) knows(flag string) bool {
	return o.Version == (Version{}) || o.Version.Compare(since[flag]) >= 0
}

// LeftOut names the flags that were asked for and that this version of Envoy does not know.
func (o Options) LeftOut() []string {
	if o.FileFlushMinSizeKB > 0 && !o.knows(flushMinSize) {
		return []string{flushMinSize}
	}
	return nil
}

// JSONLogFormat makes each line of Envoy's log an object, with the names that Istio's agent gives.
const JSONLogFormat = `{"level":"%l","time":"%Y-%m-%dT%T.%fZ","scope":"envoy %n","msg":"%j","caller":"%g:%#","thread":"%t"}`

// Args is the command line without the program's name, with the flags that Istio's agent gives.
func (o Options) Args() []string {
	level, components := splitLogLevel(orDefault(o.LogLevel, "warning"), o.ComponentLogLevel)
	args := []string{
		"-c", o.ConfigPath,
		"--drain-strategy", orDefault(o.DrainStrategy, "immediate"),
		"--local-address-ip-version", orDefault(o.LocalAddressIPVersion, "v4"),
		"--file-flush-interval-msec", strconv.FormatInt(orDefault(o.FileFlushInterval, time.Second).Milliseconds(), 10),
		"--allow-unknown-static-fields",
		"-l", level,
		"--skip-deprecated-logs",
	}
	add := func(wanted bool, flags ...string) {
		if wanted {
			args = append(args, flags...)
		}
	}
	if o.HotRestart == nil {
		args = append(args, "--disable-hot-restart")
	} else {
		args = append(args, o.HotRestart.args()...)
	}
	add(o.DrainTime > 0, "--drain-time-s", strconv.Itoa(int(o.DrainTime.Round(time.Second)/time.Second)))
	add(o.FileFlushMinSizeKB > 0 && o.knows(flushMinSize), flushMinSize, strconv.Itoa(o.FileFlushMinSizeKB))
	add(components != "", "--component-log-level", components)
	add(o.LogFormat != "", "--log-format", o.LogFormat)
	add(o.EnableCoreDump, "--enable-core-dump")
	add(o.ConfigYAML != "", "--config-yaml", o.ConfigYAML)
	add(o.Concurrency > 0, "--concurrency", strconv.Itoa(o.Concurrency))
	return append(args, o.Extra...)
}

// splitLogLevel takes the components' levels out of "level,component:level,…" and puts them before those given apart,
// since the last one wins.
func splitLogLevel(level, components string) (string, string) {
	base := "warning"
	var scoped []string
	for part := range strings.SplitSeq(level, ",") {
		part = strings.TrimSpace(part)
		switch {
		case strings.Contains(part, ":"):
			scoped = append(scoped, part)
		case part != "":
			base = part
		}
	}
	if components != "" {
		scoped = append(scoped, components)
	}
	return base, strings.Join(scoped, ",")
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
