package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const requestHelp = `Send an HTTP request to Envoy's admin interface (port 15000, the default), the
agent's status port (15020) or Envoy's readiness port (15021), and print the
response body. --debug-port also accepts the ports of the proxy's settings.
Secrets in the node's metadata are not printed.

Requests to the admin interface, and requests to the agent that change its state
or read debug pages, are sent to the agent's control socket, which only the
agent's user and root can open. If no agent listens on the socket, the requests
are sent to the ports.

Exit codes:
  0  success, or a response with status 404
  1  no response, or a response with another status above 399
  2  wrong flags`

const requestTimeout = 60 * time.Second

const (
	envoyAdminPort  = 15000
	agentStatusPort = 15020
)

// requestPorts are the values of --debug-port: Istio's default ports, and the ports of this proxy. No server listens on
// 15004 any more, but old tools still use it.
type requestPorts struct {
	own config.Ports
}

func (p requestPorts) list() []int {
	return slices.Compact(slices.Sorted(slices.Values([]int{envoyAdminPort, 15004, agentStatusPort, 15021, p.own.Admin, p.own.Status, p.own.Readiness})))
}

func newRequestCommand() *cobra.Command {
	var port int
	var configPath string
	c := &cobra.Command{
		Use:     "request METHOD PATH [BODY]",
		Short:   "Send a request to Envoy's admin port or the agent's status port",
		Long:    requestHelp,
		Example: "  pilotfish-agent request GET config_dump\n  pilotfish-agent request --debug-port=15020 POST drain",
		Args:    usage.Args("METHOD", "PATH", "[BODY]..."), // Istio's command ignores further arguments
		RunE: func(cmd *cobra.Command, args []string) error {
			ports := requestPorts{config.ReadPorts(os.Environ())}
			if !slices.Contains(ports.list(), port) {
				return usagef("--debug-port: %d is not a port of the proxy; use one of %v", port, ports.list())
			}
			body := ""
			if len(args) > 2 {
				body = args[2]
			}
			path := "/" + strings.TrimPrefix(args[1], "/")
			url := "http://" + net.JoinHostPort(proxyHost(), strconv.Itoa(port)) + path
			client := dial.LocalhostClient(requestTimeout)
			if onSocket, ok := ports.controlURL(port, path); ok {
				if control := agent.DialControl(configPath); control.IsReachable(cmd.Context()) {
					url, client = onSocket, control.HTTPClient(requestTimeout)
				}
			}
			return request(cmd.Context(), client, bodyWriter(cmd.OutOrStdout()), args[0], url, body)
		},
	}
	c.Flags().IntVar(&port, "debug-port", envoyAdminPort, "port of the proxy that receives the request: 15000 (Envoy's admin interface), 15020 (agent) or 15021 (readiness)")
	addConfigPath(c.Flags(), &configPath)
	logging.AddHiddenFlags(c.Flags())
	return c
}

// controlURL returns the URL on the control socket with the same content as path on the port. ok is false if the
// request must be sent to the port.
func (p requestPorts) controlURL(port int, path string) (url string, ok bool) {
	if port == envoyAdminPort || port == p.own.Admin {
		return agent.ControlBaseURL + agent.AdminPath + path, true
	}
	page, _, _ := strings.Cut(path, "?")
	private := page == "/drain" || page == "/quitquitquit" || strings.HasPrefix(page, "/debug/")
	return agent.ControlBaseURL + path, private && (port == agentStatusPort || port == p.own.Status)
}

// bodyWriter returns the writer for response bodies. It escapes control characters if the output is a terminal. To a
// file or pipe, it writes bodies unmodified.
func bodyWriter(out io.Writer) io.Writer {
	raw := termtext.Raw(out)
	if f, ok := raw.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return out
		}
	}
	return raw
}

func request(ctx context.Context, client *http.Client, w io.Writer, method, url, body string) error {
	r, err := http.NewRequestWithContext(ctx, strings.ToUpper(method), url, strings.NewReader(body))
	if err != nil {
		return usageError{err}
	}
	response, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("sending the request to the proxy: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode > 399 && response.StatusCode != http.StatusNotFound {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return fmt.Errorf("%s %s: %s: %s", method, url, response.Status, strings.TrimSpace(string(text)))
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") {
		return redact.NodeMetadata(w, response.Body)
	}
	_, err = io.Copy(w, response.Body)
	return err
}
