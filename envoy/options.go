package envoy

import (
	"strconv"
	"strings"
	"time"
)

// Options are the parameters of Envoy's command line. Args omits the flag of a zero field, unless the field documents a
// default.
type Options struct {
	// Version is Envoy's version. Args omits flags that this version does not support. With the zero value, Args omits
	// none.
	Version Version
	// ConfigPath is the bootstrap file.
	ConfigPath string
	// ConfigYAML is YAML that Envoy merges over the bootstrap file.
	ConfigYAML string
	// DrainTime is the drain time of listeners; whole seconds.
	DrainTime time.Duration
	// DrainStrategy is "immediate" or "gradual"; default "immediate": each response requests its client to close the
	// connection. With "gradual", only a random share of the responses does.
	DrainStrategy string
	// LocalAddressIPVersion is "v4" or "v6"; default "v4".
	LocalAddressIPVersion string
	// FileFlushInterval is the interval at which Envoy flushes access logs; default 1 second.
	FileFlushInterval time.Duration
	// FileFlushMinSizeKB is the buffer size at which Envoy flushes an access log before the interval has passed.
	FileFlushMinSizeKB int
	// LogLevel is a level, optionally with levels of components: "warning" or "info,upstream:debug". Default "warning".
	LogLevel string
	// ComponentLogLevel is "component:level,…".
	ComponentLogLevel string
	// LogFormat uses spdlog's syntax.
	LogFormat string
	// Concurrency is the number of worker threads; 0: one for each core.
	Concurrency int
	// LogDeprecations makes Envoy log the use of deprecated fields.
	LogDeprecations bool
	// EnableCoreDump enables core dumps.
	EnableCoreDump bool
	// HotRestart configures hot restarts; nil disables them, as Istio's agent does.
	HotRestart *HotRestart
	// Extra is appended to the command line unchanged.
	Extra []string
}

// minFlagVersions contains the first release that supports a flag. It lists only flags that MinimumVersion does not
// support. Envoy exits at start if it does not know a flag.
var minFlagVersions = map[string]Version{
	flushMinSize: {Major: 1, Minor: 37},
}

const flushMinSize = "--file-flush-min-size-kb"

func (o Options) supportsFlag(flag string) bool {
	return o.Version == (Version{}) || o.Version.Compare(minFlagVersions[flag]) >= 0
}

// UnsupportedFlags returns the configured flags that this version of Envoy does not support.
func (o Options) UnsupportedFlags() []string {
	if o.FileFlushMinSizeKB > 0 && !o.supportsFlag(flushMinSize) {
		return []string{flushMinSize}
	}
	return nil
}

// Args returns the command line without the program name. It passes the same flags as Istio's agent.
func (o Options) Args() []string {
	level, components := splitLogLevel(orDefault(o.LogLevel, "warning"), o.ComponentLogLevel)
	args := []string{
		"-c", o.ConfigPath,
		"--drain-strategy", orDefault(o.DrainStrategy, "immediate"),
		"--local-address-ip-version", orDefault(o.LocalAddressIPVersion, "v4"),
		"--file-flush-interval-msec", strconv.FormatInt(orDefault(o.FileFlushInterval, time.Second).Milliseconds(), 10),
		"--allow-unknown-static-fields",
		"-l", level,
	}
	add := func(wanted bool, flags ...string) {
		if wanted {
			args = append(args, flags...)
		}
	}
	add(!o.LogDeprecations, "--skip-deprecated-logs")
	if o.HotRestart == nil {
		args = append(args, "--disable-hot-restart")
	} else {
		args = append(args, o.HotRestart.args()...)
	}
	add(o.DrainTime > 0, "--drain-time-s", strconv.Itoa(int(o.DrainTime.Round(time.Second)/time.Second)))
	add(o.FileFlushMinSizeKB > 0 && o.supportsFlag(flushMinSize), flushMinSize, strconv.Itoa(o.FileFlushMinSizeKB))
	add(components != "", "--component-log-level", components)
	add(o.LogFormat != "", "--log-format", o.LogFormat)
	add(o.EnableCoreDump, "--enable-core-dump")
	add(o.ConfigYAML != "", "--config-yaml", o.ConfigYAML)
	add(o.Concurrency > 0, "--concurrency", strconv.Itoa(o.Concurrency))
	return append(args, o.Extra...)
}

// splitLogLevel splits "level,component:level,…" into the default level and the levels of components. The entries of
// the parameter components are last in the second result, because Envoy uses the last level of a component. The default
// level is "warning" if level contains none.
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
