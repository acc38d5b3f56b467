//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// What is scraped: an Envoy with so many clusters that its statistics are 5 MB, and an application with 1 MB.
const (
	scrapeServices  = 190
	applicationSize = 1 << 20
	applicationPort = "9102"
	scrapeRest      = 4 * time.Second
)

// scrape compares a merged scrape of the agent with direct scrapes of what is in it.
func (b *bench) scrape(ctx context.Context) error {
	if err := b.manyServices(); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(b.dir, "config", "many.yaml"))
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }() // it only served the measurement
	stopApp, err := serveMetrics(appAddress + ":" + applicationPort)
	if err != nil {
		return err
	}
	defer stopApp()
	agent, err := b.launchAgent(ctx,
		`PROXY_CONFIG={"discoveryAddress":"`+planeAddress+`:15012","proxyStatsMatcher":{"inclusionRegexps":[".*"]}}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","port":"`+applicationPort+`","path":"/metrics"}`)
	if err != nil {
		return err
	}
	defer agent.quit()
	if !pause(ctx, 10*time.Second) {
		return ctx.Err()
	}
	before, err := memoryOf(agent.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, encoding := range []string{"", "gzip"} {
		if err := b.compareScrapes(agent.cmd.Process.Pid, encoding); err != nil {
			return err
		}
	}
	peak, err := statusField(fmt.Sprintf("/proc/%d/status", agent.cmd.Process.Pid), "VmHWM:")
	if err != nil {
		return err
	}
	after, err := memoryOf(agent.cmd.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("resident memory of the agent: %.1f MiB before, %.1f MiB after %d scrapes (its most since it started, %.1f MiB)\n", before.all, after.all, 4*b.rounds, peak/1024)
	fmt.Printf("  its own: %.1f MiB before, %.1f MiB after; the rest is its program's file\n", before.own, after.own)
	if !pause(ctx, scrapeRest) {
		return ctx.Err()
	}
	rest, err := memoryOf(agent.cmd.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("  %s after the last scrape: %.1f MiB, its own %.1f MiB\n", scrapeRest, rest.all, rest.own)
	return nil
}

// manyServices writes the services that the proxy gets clusters for.
func (b *bench) manyServices() error {
	var config bytes.Buffer
	for i := range scrapeServices {
		fmt.Fprintf(&config, "---\napiVersion: v1\nkind: Service\nmetadata: {name: other-%d, namespace: default}\nspec:\n  selector: {app: other-%d}\n  ports: [{name: http, port: 8080}]\n", i, i)
	}
	dir := filepath.Join(b.dir, "config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "many.yaml"), config.Bytes(), 0o600)
}

// serveMetrics is an application with metrics.
func serveMetrics(address string) (stop func(), err error) {
	var text bytes.Buffer
	for f := 0; text.Len() < applicationSize; f++ {
		fmt.Fprintf(&text, "# HELP app_requests_%d_total Requests that the application answered.\n# TYPE app_requests_%d_total counter\n", f, f)
		for s := range 100 {
			fmt.Fprintf(&text, "app_requests_%d_total{method=\"GET\",path=\"/api/v1/items/%d\",code=\"200\"} %d\n", f, s, f*s)
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(text.Bytes())
	})}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }, nil
}

// compareScrapes asks in turn, and tells medians, and ratios of what was measured in the same round.
func (b *bench) compareScrapes(agent int, encoding string) error {
	targets := []string{"http://" + proxyAddress + ":15090/stats/prometheus", "http://" + appAddress + ":" + applicationPort + "/metrics",
		"http://" + proxyAddress + ":15020/stats/prometheus"}
	times, sizes := make([][]float64, len(targets)), make([]int64, len(targets))
	var direct, spent []float64
	for round := range 2*b.rounds + 1 {
		for i, target := range targets {
			before, err := cpuTime(agent)
			if err != nil {
				return err
			}
			took, size, err := scrapeOnce(target, encoding)
			if err != nil {
				return err
			}
			if i == len(targets)-1 && round > 0 {
				after, err := cpuTime(agent)
				if err != nil {
					return err
				}
				spent = append(spent, (after-before).Seconds()*1000)
			}
			sizes[i] = size
			if round > 0 { // the first one warms up
				times[i] = append(times[i], float64(took.Microseconds())/1000)
			}
		}
		if round > 0 {
			direct = append(direct, times[0][round-1]+times[1][round-1])
		}
	}
	fmt.Printf("scrapes, medians of %d in turn, Accept-Encoding: %s\n", 2*b.rounds, map[string]string{"": "none", "gzip": "gzip"}[encoding])
	for i, name := range []string{"Envoy's Prometheus port", "the application", "merged, at the agent"} {
		fmt.Printf("  %-24s %9d bytes %7.1f ms\n", name, sizes[i], medianOf(clone(times[i])))
	}
	fmt.Printf("  merged to both one after the other: x%.2f; processor time of the agent for it: %.1f ms\n", ratio(times[2], direct), medianOf(spent))
	return nil
}

func scrapeOnce(target, encoding string) (time.Duration, int64, error) {
	request, err := http.NewRequest(http.MethodGet, target, nil)
	if err != nil {
		return 0, 0, err
	}
	if encoding != "" {
		request.Header.Set("Accept-Encoding", encoding)
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	began := time.Now()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	size, err := io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", target, response.Status)
	}
	return time.Since(began), size, err
}
