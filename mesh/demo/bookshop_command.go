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

	"github.com/pilotfish-mesh/pilotfish/mesh/demo/bookshop"
)

// NewBookshopCommand is `pilotfish bookshop`: one service of the book shop, as the example's workloads run it. It finds
// its address, port and proxy in the environment that the mesh gives every application.
func NewBookshopCommand() *cobra.Command {
	var o struct{ service, version, address, port, proxy, instance string }
	c := &cobra.Command{
		Use:   "bookshop",
		Short: "Run one service of the book shop that `pilotfish demo` brings up",
		Long: `Run one service of the book shop: page, details, reviews, ratings or crawler.

It calls its upstreams by plain name (http://reviews:9080/…), through the HTTP proxy that its sidecar is where the traffic
is not captured anyway, and answers a browser with a page and everyone else with JSON that says what it saw: version, instance, the caller's identity, and
how each upstream answered. Every service has test paths too: /echo, /slow?ms=N, /flaky?every=N, /counters, /healthz.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			proxy, err := proxyURL(firstOf(o.proxy, os.Getenv("HTTP_PROXY"), os.Getenv("http_proxy")))
			if err != nil {
				return err
			}
			server, err := bookshop.New(bookshop.Config{
				Service: o.service, Version: o.version, Instance: o.instance, Proxy: proxy,
				Listen: net.JoinHostPort(firstOf(o.address, os.Getenv("PILOTFISH_APP_ADDRESS"), "127.0.0.1"),
					firstOf(o.port, os.Getenv("PORT"), "9080")),
				// Without the time: the mesh prints the lines of all workloads as they come.
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
	f.StringVar(&o.service, "service", "", "which service to be: "+bookshop.Names())
	f.StringVar(&o.version, "version", "v1", "version to be; of reviews, v1 shows no stars, v2 black and v3 red ones")
	f.StringVar(&o.address, "address", "", "address to listen on (default: env PILOTFISH_APP_ADDRESS, or 127.0.0.1)")
	f.StringVar(&o.port, "port", "", "port to listen on (default: env PORT, or 9080)")
	f.StringVar(&o.proxy, "proxy", "", "HTTP proxy through which upstreams are called (default: env HTTP_PROXY)")
	f.StringVar(&o.instance, "instance", "", "name of this instance in answers (default: SERVICE-VERSION)")
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

// firstOf is the first value that is not empty: flags before the environment before defaults.
func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
