package redirect

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/trace"
)

const traceHelp = `Show what the kernel really does with live packets: every rule that one meets, in the kernel's order and in the words of
the rules, and where it ends up. What is traced is the first packet of each connection, and every datagram; of all packets
at most 100 a second. It ends by itself, and leaves nothing behind.

Rules that are not ours are shown too, where they meet the packet.`

// tracing is one run of the command.
type tracing struct {
	common
	to, from, protocol, uid string
	port                    uint16
	length                  time.Duration
	count                   int
	all                     bool
}

func newTraceCommand(p Process) *cobra.Command {
	t := &tracing{common: common{process: p}}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show what the kernel does with live packets, rule by rule",
		Long:  traceHelp,
		Example: `  pilotfish-agent iptables trace --port 443
  pilotfish-agent iptables trace --uid 1337 --protocol tcp --for 30s --count 5
  pilotfish-agent iptables trace --to 10.0.0.10 --protocol udp --network-namespace /proc/1234/ns/net -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&t.to, "to", "", "only packets to this address, or to this CIDR")
	f.StringVar(&t.from, "from", "", "only packets from this address, or from this CIDR")
	f.Uint16Var(&t.port, "port", 0, "only packets to this port, before any redirection")
	f.StringVar(&t.protocol, "protocol", "", "only tcp, or only udp")
	f.StringVar(&t.uid, "uid", "", "only packets that processes of this user send")
	f.DurationVar(&t.length, "for", 10*time.Second, "how long to trace at most")
	f.IntVar(&t.count, "count", 20, "how many packets to show at most")
	f.BoolVar(&t.all, "all", false, "every packet, not only the first of each connection")
	f.StringVarP(&t.format, "output", "o", "", "json, a packet a line, instead of text")
	t.addNamespace(f)
	cmd.AddCommand(&cobra.Command{Use: guardCommand + " LOGGER...", Hidden: true, Short: "Put packets' loggers back when a trace was killed",
		RunE: func(_ *cobra.Command, names []string) error { return trace.PutBack(names) }})
	return cmd
}

// guardCommand is what a trace starts beside itself, by the name that makes either binary this command.
const guardCommand = "guard"

// mostTraced bounds how many packets are told.
const mostTraced = 10000

func (t *tracing) run(cmd *cobra.Command) error {
	filter, err := t.filter()
	if err != nil {
		return err
	}
	space, err := t.open()
	if err != nil {
		return err
	}
	defer space.close()
	live, err := liveReport(cmd, t.process, space)
	if err != nil {
		return err
	}
	legacy, err := backends.LegacyRules(space.fd())
	if err != nil {
		return err
	}
	w, told := cmd.OutOrStdout(), 0
	err = trace.Run(cmd.Context(), trace.Config{NetNS: space.fd(), Rules: live.Rules, Legacy: legacy, Filter: filter,
		Guard: []string{Name, "trace", guardCommand}, For: t.length, Packets: t.count}, func(p trace.Packet) (err error) {
		told++
		if t.format == "json" {
			return json.NewEncoder(w).Encode(p)
		}
		_, err = fmt.Fprintf(w, "%s\n", &p)
		return err
	})
	if err == nil && told == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "no such packet was seen in %s\n", t.length)
	}
	return err
}

func (t *tracing) filter() (f trace.Filter, err error) {
	f = trace.Filter{Protocol: iptables.Protocol(t.protocol), Port: t.port, All: t.all}
	switch {
	case t.format != "" && t.format != "json":
		return f, usagef("output format %q is not known here; use json, which is one line a packet, or leave it out for text", t.format)
	case f.Protocol != iptables.AnyProtocol && f.Protocol != iptables.TCP && f.Protocol != iptables.UDP:
		return f, usagef("--protocol %q: use tcp or udp", t.protocol)
	case t.length <= 0 || t.length > trace.Longest:
		return f, usagef("--for %s: trace for more than nothing, and at most for %s", t.length, trace.Longest)
	case t.count <= 0 || t.count > mostTraced:
		return f, usagef("--count %d: trace at least 1 packet, and at most %d", t.count, mostTraced)
	}
	if f.From, err = traced("--from", t.from); err != nil {
		return f, err
	}
	if f.To, err = traced("--to", t.to); err != nil {
		return f, err
	}
	if f.UID, err = id("--uid", t.uid, t.process.names().User); err != nil {
		return f, usage(err)
	}
	return f, nil
}

func traced(flag, text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, usagef("%s %q: write an address, or a CIDR as 10.0.0.0/8", flag, text)
	}
	return p.Masked(), nil
}
