package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

const waitHelp = `Wait until the proxy is ready to take traffic.

It asks the URL again and again until the answer is 200. Exit codes: 0 when it was; 255 when the time was over,
with the last reason that was given.`

func newWaitCommand() *cobra.Command {
	var w waiter
	var timeoutSeconds, requestMillis, periodMillis uint32
	var log logOptions
	c := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the proxy is ready",
		Long:  waitHelp,
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w.timeout = time.Duration(timeoutSeconds) * time.Second
			w.client = directClient(time.Duration(requestMillis) * time.Millisecond)
			w.period = time.Duration(periodMillis) * time.Millisecond
			return w.wait(cmd.Context())
		},
	}
	c.Flags().Uint32Var(&timeoutSeconds, "timeoutSeconds", 60, "how long to wait in all")
	c.Flags().Uint32Var(&requestMillis, "requestTimeoutMillis", 500, "how long one request may take")
	c.Flags().Uint32Var(&periodMillis, "periodMillis", 500, "time between requests")
	c.Flags().StringVar(&w.url, "url", "http://"+net.JoinHostPort(proxyHost(), "15021")+"/healthz/ready", "what to ask")
	log.addTo(c.Flags())
	return c
}

// proxyHost is where a proxy's ports are on this machine.
func proxyHost() string { return cmp.Or(os.Getenv("PROXY_BIND_ADDRESS"), "localhost") }

type waiter struct {
	url             string
	timeout, period time.Duration
	client          *http.Client
}

// shortestPeriod keeps a wait from asking as fast as it can.
const shortestPeriod = 10 * time.Millisecond

// directClient asks the proxy's own ports: past an HTTP proxy that the environment names, and with a connection for each
// request, since a listener that drains keeps the old ones.
func directClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial.Localhost(&net.Dialer{})}}
}

func (w *waiter) wait(ctx context.Context) error {
	if err := checkURL(w.url); err != nil {
		return usagef("--url: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	var err error
	for {
		last := w.ask(ctx)
		if last == nil {
			return nil
		}
		// A request that the end of the wait cut off tells less than the one before it.
		if err == nil || ctx.Err() == nil {
			err = last
		}
		if !sleep(ctx, max(w.period, shortestPeriod)) {
			return codedError{fmt.Errorf("the proxy is not ready after %v: %w", w.timeout, err), exitNotYet}
		}
	}
}

// checkURL refuses what could never answer, so that nobody waits for it.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "") {
		err = fmt.Errorf("%q is no URL that can be asked: write it as http://localhost:15021/healthz/ready", redact.Text(text))
	}
	return err
}

func (w *waiter) ask(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	reason, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	text := fmt.Sprintf("%s answers %s", w.url, response.Status)
	if r := strings.TrimSpace(string(reason)); r != "" {
		text += ": " + r
	}
	return errors.New(text)
}
