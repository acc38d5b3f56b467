package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// resolveConcurrency resolves the number of Envoy's worker threads, from the flag, ProxyConfig, ISTIO_CPU_LIMIT, or the
// cgroup's CPU limit. The default 0 selects one thread per core.
func (r *resolver) resolveConcurrency() {
	n, source := r.lookupConcurrency()
	if n < 0 || n > maxThreads {
		r.env.warn("concurrency (%s): %d: write 0 for all cores, or a number of threads; all cores are used", source, n)
		n, source = 0, sourceDefault
	}
	r.config.Envoy.Concurrency = n
	r.env.addSetting("envoy.concurrency", n, source)
}

// maxThreads is the maximum of the concurrency setting. It exceeds the number of processors of any machine.
const maxThreads = 1 << 14

func (r *resolver) lookupConcurrency() (n int, source string) {
	if r.in.Flags.Changed["concurrency"] && r.in.Flags.Concurrency != 0 {
		return r.in.Flags.Concurrency, "flag --concurrency"
	}
	if set := r.config.Proxy.GetConcurrency(); set != nil {
		return int(set.GetValue()), r.merger.source("concurrency")
	}
	if limit := r.env.vars["ISTIO_CPU_LIMIT"]; limit != "" {
		cpus, err := parseCPUs(limit)
		if err == nil {
			return cpus, "environment ISTIO_CPU_LIMIT"
		}
		r.env.warnValue("ISTIO_CPU_LIMIT", limit, "write a number of CPUs, such as 2, 1.5 or 500m", "the value has no effect")
	}
	if r.in.Limits != nil {
		if cores, ok := r.in.Limits.CPULimit(); ok {
			return int(math.Ceil(cores)), fmt.Sprintf("%s (%.3g CPUs)", sourceCgroup, cores)
		}
	}
	return 0, sourceDefault
}

// parseCPUs parses a Kubernetes CPU quantity and rounds it up.
func parseCPUs(text string) (int, error) {
	number, scale := text, 1.0
	if milli, ok := strings.CutSuffix(text, "m"); ok {
		number, scale = milli, 0.001
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f >= 0 && f < 1e6) {
		return 0, fmt.Errorf("%q is not a number of CPUs", text)
	}
	return int(math.Ceil(f * scale)), nil
}
