package demo

import (
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/bookshop"
)

// NewBookshopCommand returns the command `pilotfish bookshop`, which runs one service of the book shop. The mesh sets the
// service's address, port and HTTP proxy in its environment.
func NewBookshopCommand() *cobra.Command {
	var o struct{ service, version, address, port, proxy, instance string }
	c := &cobra.Command{
		Use:   "bookshop",
		Short: "Run one service of the book shop of `pilotfish demo`",
		Long: `Run one service of the book shop: page, details, reviews, ratings or crawler.

It calls its upstreams by plain name (http://reviews:9080/…), through its
sidecar's HTTP proxy unless the traffic is captured. It responds to browsers
with a page, and to other clients with JSON: version, instance, the client's
identity, and the results of upstream calls. Every service also has test paths:
/echo, /slow?ms=N, /flaky?every=N, /counters, /healthz.`,
		Args:          usage.Args(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			proxy, err := proxyURL(firstNonEmpty(o.proxy, os.Getenv("HTTP_PROXY"), os.Getenv("http_proxy")))
			if err != nil {
				return err
			}
			server, err := bookshop.New(bookshop.Config{
				Service: o.service, Version: o.version, Instance: o.instance, Proxy: proxy,
				Listen: net.JoinHostPort(firstNonEmpty(o.address, os.Getenv("PILOTFISH_APP_ADDRESS"), "127.0.0.1"),
					firstNonEmpty(o.port, os.Getenv("PORT"), "9080")),
				// Log lines have no timestamp, because the mesh prints the lines of all workloads in order.
				Log: log.New(c.OutOrStdout(), "", 0),
			})
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return server.Run(ctx)
		},
	}
	f := c.Flags()
	f.StringVar(&o.service, "service", "", "service of the book shop to run: "+bookshop.ServiceNames())
	f.StringVar(&o.version, "version", "v1", "version to run; reviews v1 shows no stars, v2 shows black stars, v3 red stars")
	f.StringVar(&o.address, "address", "", "address to listen on (default: env PILOTFISH_APP_ADDRESS, or 127.0.0.1)")
	f.StringVar(&o.port, "port", "", "port to listen on (default: env PORT, or 9080)")
	f.StringVar(&o.proxy, "proxy", "", "URL of the HTTP proxy through which upstreams are called (default: env HTTP_PROXY)")
	f.StringVar(&o.instance, "instance", "", "name of this instance in the shop's responses (default: SERVICE-VERSION)")
	return c
}

func proxyURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("--proxy (or HTTP_PROXY) %q is not a URL such as http://127.77.1.1:15080", s)
	}
	return u, nil
}

// firstNonEmpty returns the first value that is not empty. The callers pass a flag, a variable and a default.
func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
