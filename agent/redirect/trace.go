package redirect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/trace"
)

const traceHelp = `Show how the kernel processes live packets: every rule that a packet matches, in
order, and the packet's destination. The command traces the first packet of each
connection, and every datagram, at most 100 packets a second. It stops after
--for or --count, and leaves no changes.

Matching rules of other programs are shown too. Rules of iptables-legacy cannot
be traced.`

var errLegacyTrace = errors.New("the rules of this namespace were installed with iptables-legacy and cannot be traced: use explain to simulate a packet, " +
	"or verify --live to send test packets")

// traceCommand traces live packets through the rules.
type traceCommand struct {
	commonFlags
	to, from, protocol, uid string
	port                    uint16
	length                  time.Duration
	count                   int
	all                     bool
}

func newTraceCommand(p Process) *cobra.Command {
	t := &traceCommand{commonFlags: commonFlags{process: p}}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show what the kernel does with live packets, rule by rule",
		Long:  traceHelp,
		Example: `  pilotfish-agent iptables trace --port 443
  pilotfish-agent iptables trace --uid 1337 --protocol tcp --for 30s --count 5
  pilotfish-agent iptables trace --network-namespace /proc/1234/ns/net -o json`,
		Args: usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&t.to, "to", "", "trace only packets to this address or CIDR")
	f.StringVar(&t.from, "from", "", "trace only packets from this address or CIDR")
	f.Uint16Var(&t.port, "port", 0, "trace only packets to this destination port, before any redirection; 0: all ports")
	f.StringVar(&t.protocol, "protocol", "", "trace only tcp, or only udp (default: both)")
	f.StringVar(&t.uid, "uid", "", "trace only packets that processes of this user send: a user ID or name")
	f.DurationVar(&t.length, "for", 10*time.Second, "maximum duration of the trace")
	f.IntVar(&t.count, "count", 20, "maximum number of packets to show")
	f.BoolVar(&t.all, "all", false, "trace every packet, not only the first of each connection")
	f.StringVarP(&t.format, "output", "o", "", "output format: json, with one line per packet (default: text)")
	usage.SetCompletions(cmd, "output", "json")
	usage.SetCompletions(cmd, "protocol", "tcp", "udp")
	t.addNamespace(f)
	return cmd
}

// maxTracePackets is the maximum of --count.
const maxTracePackets = 10000

func (t *traceCommand) run(cmd *cobra.Command) error {
	filter, err := t.filter()
	if err != nil {
		return err
	}
	space, err := t.openNamespace()
	if err != nil {
		return err
	}
	defer space.close()
	live, err := readLiveReport(cmd, t.process, space)
	if err != nil {
		return err
	}
	if live.Backend == "iptables-legacy" {
		return errLegacyTrace
	}
	w, shown := cmd.OutOrStdout(), 0
	err = trace.Run(cmd.Context(), trace.Config{NetNS: space.fd(), Rules: live.Rules, Filter: filter,
		For: t.length, Packets: t.count}, func(p trace.Packet) (err error) {
		shown++
		if t.format == "json" {
			return json.NewEncoder(w).Encode(p)
		}
		_, err = fmt.Fprintf(w, "%s\n", &p)
		return err
	})
	if err == nil && shown == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "no matching packet was seen in %s\n", t.length)
	}
	return err
}

func (t *traceCommand) filter() (f trace.Filter, err error) {
	f = trace.Filter{Protocol: iptables.Protocol(t.protocol), Port: t.port, All: t.all}
	switch {
	case t.format != "" && t.format != "json":
		return f, usagef("output format %q is not known for this command; use json (one line per packet), or omit the flag for text", t.format)
	case f.Protocol != iptables.AnyProtocol && f.Protocol != iptables.TCP && f.Protocol != iptables.UDP:
		return f, usagef("--protocol %q: use tcp or udp", t.protocol)
	case t.length <= 0 || t.length > trace.MaxDuration:
		return f, usagef("--for %s: write a duration above 0, and at most %s", t.length, trace.MaxDuration)
	case t.count <= 0 || t.count > maxTracePackets:
		return f, usagef("--count %d: write a number from 1 to %d", t.count, maxTracePackets)
	}
	if f.From, err = parseTracePrefix("--from", t.from); err != nil {
		return f, err
	}
	if f.To, err = parseTracePrefix("--to", t.to); err != nil {
		return f, err
	}
	if f.UID, err = parseID("--uid", t.uid, t.process.nameLookup().User); err != nil {
		return f, usageError(err)
	}
	return f, nil
}

func parseTracePrefix(flag, text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, usagef("%s %q: write an address, or a CIDR such as 10.0.0.0/8", flag, text)
	}
	return p.Masked(), nil
}
