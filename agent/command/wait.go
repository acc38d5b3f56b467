package command

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

	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const waitHelp = `Wait until the proxy is ready to receive traffic: request the URL repeatedly
until the status is 200.

Exit codes:
  0    the proxy is ready
  2    wrong flags
  255  timeout; the message contains the reason of the last failure`

func newWaitCommand() *cobra.Command {
	var w waiter
	var timeoutSeconds, requestMillis, periodMillis uint32
	c := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the proxy is ready",
		Long:  waitHelp,
		Args:  usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w.timeout = time.Duration(timeoutSeconds) * time.Second
			w.client = dial.LocalhostClient(time.Duration(requestMillis) * time.Millisecond)
			w.period = time.Duration(periodMillis) * time.Millisecond
			return w.wait(cmd.Context())
		},
	}
	c.Flags().Uint32Var(&timeoutSeconds, "timeoutSeconds", 60, "maximum total time to wait, in seconds")
	c.Flags().Uint32Var(&requestMillis, "requestTimeoutMillis", 500, "timeout of one request, in milliseconds")
	c.Flags().Uint32Var(&periodMillis, "periodMillis", 500, "time between two requests, in milliseconds")
	c.Flags().StringVar(&w.url, "url", "http://"+net.JoinHostPort(proxyHost(), "15021")+"/healthz/ready", "URL to request")
	logging.AddHiddenFlags(c.Flags())
	return c
}

// proxyHost returns the host of the proxy's ports on this machine.
func proxyHost() string { return cmp.Or(os.Getenv("PROXY_BIND_ADDRESS"), "localhost") }

type waiter struct {
	url             string
	timeout, period time.Duration
	client          *http.Client
}

// minPeriod is the minimum interval between requests.
const minPeriod = 10 * time.Millisecond

func (w *waiter) wait(ctx context.Context) error {
	if err := checkURL(w.url); err != nil {
		return usagef("--url: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	var err error
	for {
		last := w.checkOnce(ctx)
		if last == nil {
			return nil
		}
		// Ignore an error that is only due to the overall timeout. The previous error is more informative.
		if err == nil || ctx.Err() == nil {
			err = last
		}
		select {
		case <-time.After(max(w.period, minPeriod)):
		case <-ctx.Done():
			return exitCodeError{fmt.Errorf("the proxy is not ready after %v: %w", w.timeout, err), exitTimeout}
		}
	}
}

// checkURL returns an error for a URL that is not an HTTP URL with a host.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "") {
		err = fmt.Errorf("%q is not an HTTP URL with a host: write it as http://localhost:15021/healthz/ready", redact.Text(text))
	}
	return err
}

func (w *waiter) checkOnce(ctx context.Context) error {
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
	text := fmt.Sprintf("%s responds with %s", w.url, response.Status)
	if r := strings.TrimSpace(string(reason)); r != "" {
		text += ": " + r
	}
	return errors.New(text)
}
