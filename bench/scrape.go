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
)

// What is scraped: an Envoy with so many clusters that its statistics are 5 MB, and an application with 1 MB.
const (
	scrapeServices  = 190
	applicationSize = 1 << 20
	applicationPort = "9102"
	scrapeRest      = 4 * time.Second
	weighEach       = 3 * time.Millisecond
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

// encodings are those that scrapes ask for.
var encodings = []string{"", "gzip"}

func encodingName(encoding string) string { return cmp.Or(encoding, "none") }

// weighScrapes tells what scrapes that follow each other cost the agent of memory: while they go on, right after them, and
// when it has rested.
func (b *bench) weighScrapes(ctx context.Context, pid int, encoding string) error {
	fmt.Printf("memory of the agent and %d scrapes one right after the other, Accept-Encoding: %s\n", 2*b.rounds, encodingName(encoding))
	if err := weigh("before", pid); err != nil {
		return err
	}
	stop := weighMost(pid)
	for range 2 * b.rounds {
		if _, _, err := scrapeOnce("http://"+proxyAddress+":15020/stats/prometheus", encoding); err != nil {
			return err
		}
	}
	most := stop()
	fmt.Printf("  %-47s %6.1f MiB, of which its own %5.1f\n", "most while they go on", most.all, most.own)
	if err := weigh("right after them", pid); err != nil {
		return err
	}
	if !pause(ctx, scrapeRest) {
		return ctx.Err()
	}
	return weigh(fmt.Sprintf("%s later", scrapeRest), pid)
}

// weighMost weighs a process again and again until stop is called, which gives the most of all and the most of its own.
func weighMost(pid int) (stop func() memory) {
	ended, result := make(chan struct{}), make(chan memory)
	go func() {
		var most memory
		for {
			if m, err := memoryOf(pid); err == nil { // an agent that ended is noticed by its scraper
				most = memory{max(most.all, m.all), max(most.own, m.own)}
			}
			select {
			case <-ended:
				result <- most
				return
			case <-time.After(weighEach):
			}
		}
	}()
	return func() memory { close(ended); return <-result }
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
	fmt.Printf("scrapes, medians of %d in turn and the best of each, Accept-Encoding: %s\n", 2*b.rounds, encodingName(encoding))
	for i, name := range []string{"Envoy's Prometheus port", "the application", "merged, at the agent"} {
		fmt.Printf("  %-24s %9d bytes %7.1f ms %7.1f ms\n", name, sizes[i], medianOf(clone(times[i])), slices.Min(times[i]))
	}
	best := slices.Min(times[2]) / (slices.Min(times[0]) + slices.Min(times[1]))
	fmt.Printf("  merged to both one after the other: x%.2f, of the best x%.2f; processor time of the agent for it: %.1f ms\n", ratio(times[2], direct), best, medianOf(spent))
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
