//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// Sizes of the scrape targets: an Envoy with scrapeServices clusters, whose statistics have 5 MB, and an application
// with 1 MB.
const (
	scrapeServices  = 190
	applicationSize = 1 << 20
	applicationPort = "9102"
	scrapePause     = 4 * time.Second
	weighEach       = 3 * time.Millisecond
)

// scrape compares a scrape of the agent's merged metrics with direct scrapes of Envoy and the application.
func (b *bench) scrape(ctx context.Context) error {
	if err := b.writeServices(); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(b.dir, "config", "many.yaml"))
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }() // only needed for the measurement
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
	if !backoff.Sleep(ctx, 10*time.Second) {
		return ctx.Err()
	}
	pid := agent.cmd.Process.Pid
	for _, encoding := range encodings {
		if err := b.weighScrapes(ctx, pid, encoding); err != nil {
			return err
		}
	}
	for _, encoding := range encodings {
		if err := b.compareScrapes(pid, encoding); err != nil {
			return err
		}
	}
	return nil
}

// encodings are the measured values of the Accept-Encoding header.
var encodings = []string{"", "gzip"}

func encodingName(encoding string) string { return cmp.Or(encoding, "none") }

// weighScrapes prints the agent's memory during consecutive scrapes, immediately after them, and after a pause.
func (b *bench) weighScrapes(ctx context.Context, pid int, encoding string) error {
	fmt.Printf("memory of the agent with %d consecutive scrapes, Accept-Encoding: %s\n", 2*b.rounds, encodingName(encoding))
	if err := weigh("before", pid); err != nil {
		return err
	}
	stop := weighPeak(pid)
	for range 2 * b.rounds {
		if _, _, err := scrapeOnce("http://"+proxyAddress+":15020/stats/prometheus", encoding); err != nil {
			return err
		}
	}
	peak := stop()
	fmt.Printf("  %-47s %6.1f MiB, of which anonymous %5.1f\n", "maximum during the scrapes", peak.all, peak.own)
	if err := weigh("immediately after them", pid); err != nil {
		return err
	}
	if !backoff.Sleep(ctx, scrapePause) {
		return ctx.Err()
	}
	return weigh(fmt.Sprintf("%s later", scrapePause), pid)
}

// weighPeak samples the memory of a process until stop is called. stop returns the maximum values.
func weighPeak(pid int) (stop func() memory) {
	ended, result := make(chan struct{}), make(chan memory)
	go func() {
		var peak memory
		for {
			if m, err := memoryOf(pid); err == nil { // if the agent has exited, the next scrape fails
				peak = memory{max(peak.all, m.all), max(peak.own, m.own)}
			}
			select {
			case <-ended:
				result <- peak
				return
			case <-time.After(weighEach):
			}
		}
	}()
	return func() memory { close(ended); return <-result }
}

// writeServices writes Services, for each of which the proxy receives a cluster.
func (b *bench) writeServices() error {
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

// serveMetrics starts an application that serves metrics.
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

// compareScrapes scrapes Envoy, the application and the agent alternately. It prints medians of the durations, and the
// ratio of the agent's duration to the others.
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
			if round > 0 { // the first round is a warm-up
				times[i] = append(times[i], float64(took.Microseconds())/1000)
			}
		}
		if round > 0 {
			direct = append(direct, times[0][round-1]+times[1][round-1])
		}
	}
	fmt.Printf("scrapes, medians and minimums of %d, Accept-Encoding: %s\n", 2*b.rounds, encodingName(encoding))
	for i, name := range []string{"Envoy's Prometheus port", "the application", "merged, at the agent"} {
		fmt.Printf("  %-24s %9d bytes %7.1f ms %7.1f ms\n", name, sizes[i], medianOf(clone(times[i])), slices.Min(times[i]))
	}
	best := slices.Min(times[2]) / (slices.Min(times[0]) + slices.Min(times[1]))
	fmt.Printf("  ratio of the merged scrape to the sum of the others: x%.2f, of the minimums x%.2f; CPU time of the agent: %.1f ms\n", ratio(times[2], direct), best, medianOf(spent))
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
		err = fmt.Errorf("%s responded with %s", target, response.Status)
	}
	return time.Since(began), size, err
}
