package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const requestHelp = `Send a request to one of the proxy's own ports and print the answer's body: to Envoy's admin interface (15000),
the agent's status port (15020) or Envoy's readiness port (15021).

Exit codes: 0; 1 when there is no answer, or one over 399 that is not 404.`

const requestTimeout = 60 * time.Second

// requestPorts are the ports that may be asked. 15004 has no server any more; old tools still name it.
var requestPorts = []int{15000, 15004, 15020, 15021}

func newRequestCommand() *cobra.Command {
	var port int
	var log logOptions
	c := &cobra.Command{
		Use:     "request METHOD PATH [BODY]",
		Short:   "Send a request to Envoy's admin interface or the agent's status port",
		Long:    requestHelp,
		Example: "  pilotfish-agent request GET config_dump\n  pilotfish-agent request --debug-port=15020 POST drain",
		Args:    usageArgs(cobra.RangeArgs(2, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(requestPorts, port) {
				return usagef("--debug-port: %d is not a port of the proxy; use one of %v", port, requestPorts)
			}
			body := ""
			if len(args) == 3 {
				body = args[2]
			}
			url := "http://" + net.JoinHostPort(proxyHost(), strconv.Itoa(port)) + "/" + strings.TrimPrefix(args[1], "/")
			return request(cmd.Context(), cmd.OutOrStdout(), args[0], url, body)
		},
	}
	c.Flags().IntVar(&port, "debug-port", 15000, "the port to ask")
	log.addTo(c.Flags())
	return c
}

func request(ctx context.Context, w io.Writer, method, url, body string) error {
	client := directClient(requestTimeout)
	r, err := http.NewRequestWithContext(ctx, strings.ToUpper(method), url, strings.NewReader(body))
	if err != nil {
		return usageError{err}
	}
	response, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("asking the proxy: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode > 399 && response.StatusCode != http.StatusNotFound {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return fmt.Errorf("%s %s: %s: %s", method, url, response.Status, strings.TrimSpace(string(text)))
	}
	_, err = io.Copy(w, response.Body)
	return err
}
