package agent

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// concurrency is the flag's, or ProxyConfig's, or as many threads as the container has CPUs, or Envoy's own choice (0).
func (r *resolver) concurrency() {
	n, source := r.threads()
	if n < 0 || n > mostThreads {
		r.fail("concurrency (%s): %d: write 0 for all cores, or a number of threads", source, n)
	}
	r.config.Envoy.Concurrency = n
	r.env.note("envoy.concurrency", n, source)
}

// mostThreads is more than any machine has processors.
const mostThreads = 1 << 14

func (r *resolver) threads() (n int, source string) {
	if r.in.Flags.Given["concurrency"] && r.in.Flags.Concurrency != 0 {
		return r.in.Flags.Concurrency, "flag --concurrency"
	}
	if set := r.config.Proxy.GetConcurrency(); set != nil {
		return int(set.GetValue()), r.layers.source("concurrency")
	}
	if limit := r.env.vars["ISTIO_CPU_LIMIT"]; limit != "" {
		cpus, err := parseCPUs(limit)
		if err != nil {
			r.env.refuse("ISTIO_CPU_LIMIT", limit, "write a number of CPUs, as 2, 1.5 or 500m")
		}
		return cpus, "environment ISTIO_CPU_LIMIT"
	}
	if r.in.Limits != nil {
		if cores, ok := r.in.Limits.CPULimit(); ok {
			return int(math.Ceil(cores)), fmt.Sprintf("%s (%.3g CPUs)", sourceCgroup, cores)
		}
	}
	return 0, sourceDefault
}

// parseCPUs reads a Kubernetes quantity of CPUs, rounded up to whole ones.
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
