package redirect

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const explainHelp = `Explain how a packet would be redirected, which rule decides, and why. The
packet is evaluated against the rules that follow from the options, as the
kernel would do it; nothing is changed or sent. With --live it is evaluated
against the installed rules.

A packet is inbound if its destination is an address of this pod and its source
is not, or if it arrives from elsewhere through a virtual machine's interface
(--by). All other packets, and all packets with --uid or --gid, are sent by a
process of this pod. The pod's addresses are read from --addresses, the saved
configuration, or the network namespace.`

// explainCommand explains how one packet would be redirected.
type explainCommand struct {
	commonFlags
	from, to, by       string
	uid, gid           string
	mark               uint32
	state              string
	inbound, live, all bool
}

func newExplainCommand(p Process) *cobra.Command {
	e := &explainCommand{commonFlags: commonFlags{process: p}}
	cmd := &cobra.Command{
		Use:   "explain --to ADDRESS:PORT[/tcp|udp]",
		Short: "Explain how a packet would be redirected",
		Long:  explainHelp,
		Example: `  pilotfish-agent iptables explain -i "*" --uid 1000 --to 10.2.3.4:443/tcp
  pilotfish-agent iptables explain --live --to 10.0.0.10:53/udp`,
		Args: usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&e.to, "to", "", "destination of the packet, such as 10.2.3.4:443/tcp or [fd00::1]:53/udp")
	f.StringVar(&e.from, "from", "", "source address of the packet, with or without a port (default: an address of the pod)")
	f.StringVar(&e.uid, "uid", "", "user ID or name of the sending process (default: a user that no rule matches)")
	f.StringVar(&e.gid, "gid", "", "group ID or name of the sending process (default: the number of its user ID)")
	f.StringVar(&e.by, "by", "", "network interface on which the packet arrives or leaves (default: lo for the pod's own addresses, eth0 otherwise)")
	f.BoolVar(&e.inbound, "inbound", false, "treat the packet as inbound, regardless of its addresses")
	f.Uint32Var(&e.mark, "mark", 0, "firewall mark (fwmark) of the packet, a number; 0: none")
	f.StringVar(&e.state, "state", "new", "state of the packet's connection: new, established, related or invalid")
	f.BoolVar(&e.live, "live", false, "evaluate the rules that are installed in the kernel, instead of the rules that follow from the options")
	f.BoolVar(&e.all, "all", false, "show every rule that is evaluated, including those that do not match")
	e.addOutput(cmd, "json", "yaml")
	return cmd
}

func (e *explainCommand) run(cmd *cobra.Command) error {
	space, err := e.openNamespace()
	if err != nil {
		return err
	}
	defer space.close()
	options, rules, err := e.resolve(cmd.Flags(), space)
	if err != nil {
		return err
	}
	if e.live {
		r, err := readLiveReport(cmd, e.process, space)
		if err != nil {
			return err
		}
		rules = r.Rules
	}
	packet, err := e.buildPacket(&options.options, rules)
	if err != nil {
		return usageError(err)
	}
	return e.print(cmd.OutOrStdout(), packet, iptables.Explain(rules, packet))
}

func (e *explainCommand) buildPacket(o *iptables.Options, rules *iptables.RuleSet) (iptables.Packet, error) {
	p := iptables.Packet{Direction: iptables.Outbound, Mark: e.mark, State: iptables.State(e.state)}
	if !slices.Contains([]iptables.State{iptables.New, iptables.Established, iptables.Related, iptables.Invalid}, p.State) {
		return p, fmt.Errorf("--state %q: use new, established, related or invalid", e.state)
	}
	if err := e.setAddresses(&p, o.Addresses); err != nil {
		return p, err
	}
	local := iptables.IsLocal(p.To.Addr(), o.Addresses)
	machine := slices.Contains(o.VirtualInterfaces, e.by)
	sent := e.uid != "" || e.gid != ""
	if e.inbound && sent {
		return p, errors.New("--inbound: inbound packets have no local sender: omit --uid and --gid")
	}
	if foreign := e.from != "" && !iptables.IsLocal(p.From.Addr(), o.Addresses); e.inbound || foreign && !sent && (local || machine) {
		p.Direction = iptables.Inbound
		p.Forwarded = machine && !local
	}
	switch {
	case e.by != "":
		p.Interface = e.by
	case local && p.Direction == iptables.Outbound:
		p.Interface = "lo"
	default:
		p.Interface = "eth0"
	}
	if p.Direction == iptables.Inbound {
		return p, nil
	}
	return p, e.setOwner(&p, rules)
}

// setAddresses sets the packet's source and destination. The default source is an address of the pod in the
// destination's address family.
func (e *explainCommand) setAddresses(p *iptables.Packet, own []netip.Addr) error {
	if e.to == "" {
		return fmt.Errorf("--to is missing: specify the destination, for example --to 10.2.3.4:443/tcp")
	}
	to, protocol, found := strings.Cut(e.to, "/")
	if !found {
		protocol = "tcp"
	}
	if p.Protocol = iptables.Protocol(protocol); p.Protocol != iptables.TCP && p.Protocol != iptables.UDP {
		return fmt.Errorf("--to %q: write tcp or udp as the protocol", e.to)
	}
	var err error
	if p.To, err = netip.ParseAddrPort(to); err != nil {
		return fmt.Errorf("--to %q: write an address and a port, for example 10.2.3.4:443/tcp or [fd00::1]:443", e.to)
	}
	p.To = netip.AddrPortFrom(resolveUnspecified(p.To.Addr().Unmap().WithZone("")), p.To.Port())
	if p.To.Port() == 0 {
		return fmt.Errorf("--to %q: write a port from 1 to 65535", e.to)
	}
	p.From, err = parseSource(e.from, p.To.Addr(), own)
	if err == nil && p.From.Addr().Is4() != p.To.Addr().Is4() {
		err = fmt.Errorf("--from %s and --to %s have different address families", p.From.Addr(), p.To.Addr())
	}
	return err
}

// resolveUnspecified replaces 0.0.0.0 and :: by the loopback address. The kernel does the same for destinations.
func resolveUnspecified(a netip.Addr) netip.Addr {
	switch {
	case !a.IsUnspecified():
		return a
	case a.Is4():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// defaultSourcePort is a source port that no rule matches.
const defaultSourcePort = 40000

func parseSource(text string, to netip.Addr, own []netip.Addr) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPortFrom(defaultSource(to, own), defaultSourcePort), nil
	}
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a.Unmap().WithZone(""), defaultSourcePort), nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return a, fmt.Errorf("--from %q: write an address, with or without a port", text)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()), nil
}

// defaultSource returns that address of own which the kernel would select as source for packets to the address to. If
// there is none, it returns the loopback address.
func defaultSource(to netip.Addr, own []netip.Addr) netip.Addr {
	if !to.IsLoopback() {
		for _, a := range own {
			if a.Is4() == to.Is4() && !a.IsLinkLocalUnicast() {
				return a
			}
		}
	}
	if to.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

func (e *explainCommand) setOwner(p *iptables.Packet, rules *iptables.RuleSet) error {
	if e.uid == "" && e.gid == "" {
		p.UID, p.GID = unmatchedID(rules), unmatchedID(rules)
		return nil
	}
	names := e.process.nameLookup()
	uid, err := parseID("--uid", e.uid, names.User)
	if err != nil {
		return err
	}
	gid, err := parseID("--gid", e.gid, names.Group)
	if err != nil {
		return err
	}
	switch {
	case uid == nil:
		uid = unmatchedID(rules)
	case gid == nil:
		gid = uid
	}
	p.UID, p.GID = uid, gid
	return nil
}

func parseID(flag, text string, find func(string) (uint32, error)) (*uint32, error) {
	if text == "" {
		return nil, nil
	}
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		id := uint32(n)
		return &id, nil
	}
	id, err := find(text)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w: write its number", flag, text, err)
	}
	return &id, nil
}

// unmatchedID returns a user or group ID that no rule matches. If the rules capture only the traffic of some groups, it
// returns the first of these groups.
func unmatchedID(rules *iptables.RuleSet) *uint32 {
	var known []uint32
	for _, c := range rules.Chains {
		for _, r := range c.Rules {
			if r.Match.NotGIDs && len(r.Match.GIDs) > 0 {
				return &r.Match.GIDs[0]
			}
			known = append(append(known, r.Match.UIDs...), r.Match.GIDs...)
		}
	}
	id := uint32(1000)
	for slices.Contains(known, id) {
		id++
	}
	return &id
}

// explanationReport is the JSON output of explain.
type explanationReport struct {
	Packet string `json:"packet"`
	iptables.Explanation
}

func (e *explainCommand) print(w io.Writer, p iptables.Packet, x iptables.Explanation) error {
	if !e.all {
		x.Steps = slices.DeleteFunc(x.Steps, func(s iptables.Step) bool { return s.Missed != "" })
	}
	if e.format != "" {
		return printAs(w, e.format, explanationReport{p.String(), x})
	}
	f := terminal.Detect(w)
	text := fmt.Sprintf("%s\n\n%s\n", termtext.EscapeLines(p.String()), f.Paint(terminal.Bold, termtext.EscapeLines(x.Why)))
	if err := f.WriteText(w, text); err != nil || len(x.Steps) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t := f.NewTable("TABLE", "CHAIN", "RULE", "")
	for _, s := range x.Steps {
		if s.Missed != "" {
			t.AddRow(string(s.Table), s.Chain, s.Rule.ID, "no: "+s.Missed)
			t.PaintCell(3, terminal.Dim)
			continue
		}
		t.AddRow(string(s.Table), s.Chain, s.Rule.ID, s.Rule.String())
	}
	return t.Write(w)
}
