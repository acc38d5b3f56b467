//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// agentStartRun is the start of one agent.
type agentStartRun struct {
	envoyExec, startCPU time.Duration
}

// agentScrapeRun contains the sizes (MB) and durations of scrapes of one agent and its Envoy.
type agentScrapeRun struct {
	mergedSize, directSize float64
	merged, direct         time.Duration
}

// agentStart compares only the starts of the agents, and needs less time than the method agents.
func (b *bench) agentStart(ctx context.Context) error {
	return b.compareAgents(ctx, "agent-start", (*agentRun).measureStart, []agentValue{
		{"exec to ready, ms", func(r agentRun) float64 { return ms(r.start) }},
		{"exec to Envoy's exec, ms", func(r agentRun) float64 { return ms(r.envoyExec) }},
		{"CPU of the agent until ready, ms", func(r agentRun) float64 { return ms(r.startCPU) }},
		{"memory peak until ready, MiB", func(r agentRun) float64 { return r.loadRSS }},
		{"  of which anonymous", func(r agentRun) float64 { return r.loadAnon }},
	})
}

// measureStart measures the agent until it is ready.
func (run *agentRun) measureStart(ctx context.Context, pid int, began time.Time, _ *planeMesh) error {
	peak, executed := watchMemory(pid), make(chan time.Time, 1)
	go func() {
		for ctx.Err() == nil {
			if envoy, err := childOf(pid); err == nil && envoy != 0 && isProgram(envoy, "envoy") {
				executed <- time.Now()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	ready, err := awaitOK(ctx, "http://127.0.0.1:15021/healthz/ready")
	run.startCPU, _ = cpuOf(pid)
	run.loadRSS, run.loadAnon = peak()
	if err != nil {
		return err
	}
	run.start, run.envoyExec = ready.Sub(began), (<-executed).Sub(began)
	return nil
}

// isProgram reports whether a process executes the named program and not only queries its version.
func isProgram(pid int, name string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(string(line), "\x00")
	return err == nil && filepath.Base(args[0]) == name && len(args) > 1 && args[1] != "--version"
}

// agentScrape compares scrapes of the merged metrics, with all statistics of Envoy.
func (b *bench) agentScrape(ctx context.Context) error {
	b.proxyConfig = `,"proxyStatsMatcher":{"inclusionRegexps":[".*"]}`
	return b.compareAgents(ctx, "agent-scrape", (*agentRun).measureScrapes, []agentValue{
		{"merged scrape, MB", func(r agentRun) float64 { return r.mergedSize }},
		{"merged scrape, ms", func(r agentRun) float64 { return ms(r.merged) }},
		{"scrape of Envoy, MB", func(r agentRun) float64 { return r.directSize }},
		{"scrape of Envoy, ms", func(r agentRun) float64 { return ms(r.direct) }},
	})
}

// measureScrapes scrapes the agent and Envoy in turn when the agent is ready.
func (run *agentRun) measureScrapes(ctx context.Context, _ int, _ time.Time, _ *planeMesh) error {
	if _, err := awaitOK(ctx, "http://127.0.0.1:15021/healthz/ready"); err != nil {
		return err
	}
	var merged, direct []time.Duration
	for range 5 {
		for _, source := range []struct {
			url   string
			took  *[]time.Duration
			bytes *float64
		}{{"http://127.0.0.1:15020/stats/prometheus", &merged, &run.mergedSize}, {"http://127.0.0.1:15090/stats/prometheus", &direct, &run.directSize}} {
			began := time.Now()
			size, err := scrapePlain(ctx, source.url)
			if err != nil {
				return err
			}
			*source.took, *source.bytes = append(*source.took, time.Since(began)), float64(size)/1e6
		}
	}
	run.merged, run.direct = median(merged), median(direct)
	return nil
}

// scrapePlain reads a page without compression, and returns its size.
func scrapePlain(ctx context.Context, url string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Accept-Encoding", "identity")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	size, err := io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s returns %s", url, response.Status)
	}
	return size, err
}
