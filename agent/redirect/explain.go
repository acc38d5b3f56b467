package redirect

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const explainHelp = `Say where a packet ends up, which rule decides, and why. The packet is walked through the rules that the options come
to, as the kernel walks it; nothing is touched or sent. With --live it is walked through what the kernel has.

A packet to an address of this pod from one that is not comes in, as does one from elsewhere by a virtual machine's
interface (--by); every other one, and all with --uid or --gid, is sent by a process of this pod. The pod's addresses are
those of the namespace, of the saved configuration, or of --addresses.`

// explain is one question.
type explain struct {
	common
	from, to, by       string
	uid, gid           string
	mark               uint32
	state              string
	inbound, live, all bool
}

func newExplainCommand(p Process) *cobra.Command {
	e := &explain{common: common{process: p}}
	cmd := &cobra.Command{
		Use:   "explain --to ADDRESS:PORT[/tcp|udp] [--from ADDRESS[:PORT]] [--uid UID] [--gid GID]",
		Short: "Say where a packet ends up, and why",
		Long:  explainHelp,
		Example: `  pilotfish-agent iptables explain --config rules.yaml --from 10.0.0.5 --uid 1000 --to 10.2.3.4:443/tcp
  pilotfish-agent iptables explain --live --to 10.0.0.10:53/udp`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&e.to, "to", "", "destination, as 10.2.3.4:443/tcp or [fd00::1]:53/udp")
	f.StringVar(&e.from, "from", "", "source, with or without a port (default: the pod itself)")
	f.StringVar(&e.uid, "uid", "", "user of the process that sends (default: one that no rule speaks of)")
	f.StringVar(&e.gid, "gid", "", "its group (default: the number of its user)")
	f.StringVar(&e.by, "by", "", "interface (default: lo for the pod's own addresses, eth0 otherwise)")
	f.BoolVar(&e.inbound, "inbound", false, "the packet comes in, whatever its addresses")
	f.Uint32Var(&e.mark, "mark", 0, "mark of the packet")
	f.StringVar(&e.state, "state", "new", "state of its connection: new, established, related or invalid")
	f.BoolVar(&e.live, "live", false, "walk it through what is in force")
	f.BoolVar(&e.all, "all", false, "show every rule that the packet meets, also those that do not hold")
	e.addOutput(f)
	return cmd
}

func (e *explain) run(cmd *cobra.Command) error {
	space, err := e.open()
	if err != nil {
		return err
	}
	defer space.close()
	options, rules, err := e.resolve(cmd.Flags(), space)
	if err != nil {
		return err
	}
	if e.live {
		r, err := liveReport(cmd, e.process, space)
		if err != nil {
			return err
		}
		rules = r.Rules
	}
	packet, err := e.packet(&options.options, rules)
	if err != nil {
		return usage(err)
	}
	return e.print(cmd.OutOrStdout(), packet, iptables.Explain(rules, packet))
}

func (e *explain) packet(o *iptables.Options, rules *iptables.RuleSet) (iptables.Packet, error) {
	p := iptables.Packet{Direction: iptables.Outbound, Mark: e.mark, State: iptables.State(e.state)}
	if !slices.Contains([]iptables.State{iptables.New, iptables.Established, iptables.Related, iptables.Invalid}, p.State) {
		return p, fmt.Errorf("--state %q: use new, established, related or invalid", e.state)
	}
	if err := e.addresses(&p, o.Addresses); err != nil {
		return p, err
	}
	local := iptables.IsLocal(p.To.Addr(), o.Addresses)
	machine := slices.Contains(o.VirtualInterfaces, e.by)
	sent := e.uid != "" || e.gid != ""
	if e.inbound && sent {
		return p, errors.New("--inbound: what comes in is sent by no process of this pod: leave out --uid and --gid")
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
	return p, e.owner(&p, rules)
}

// addresses are the two ends. A source that nobody gives is the pod's own of the same family.
func (e *explain) addresses(p *iptables.Packet, own []netip.Addr) error {
	if e.to == "" {
		return fmt.Errorf("--to is missing: say where the packet goes, as --to 10.2.3.4:443/tcp")
	}
	to, protocol, found := strings.Cut(e.to, "/")
	if !found {
		protocol = "tcp"
	}
	if p.Protocol = iptables.Protocol(protocol); p.Protocol != iptables.TCP && p.Protocol != iptables.UDP {
		return fmt.Errorf("--to %q: the protocol is tcp or udp", e.to)
	}
	var err error
	if p.To, err = netip.ParseAddrPort(to); err != nil {
		return fmt.Errorf("--to %q: write an address and a port, as 10.2.3.4:443/tcp or [fd00::1]:443", e.to)
	}
	p.To = netip.AddrPortFrom(destination(p.To.Addr().Unmap().WithZone("")), p.To.Port())
	if p.To.Port() == 0 {
		return fmt.Errorf("--to %q: write a port from 1 to 65535", e.to)
	}
	p.From, err = source(e.from, p.To.Addr(), own)
	if err == nil && p.From.Addr().Is4() != p.To.Addr().Is4() {
		err = fmt.Errorf("--from %s and --to %s are of two address families", p.From.Addr(), p.To.Addr())
	}
	return err
}

// destination is what the kernel takes 0.0.0.0 and :: for: localhost.
func destination(a netip.Addr) netip.Addr {
	switch {
	case !a.IsUnspecified():
		return a
	case a.Is4():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// anyPort is a source port that no rule speaks of.
const anyPort = 40000

func source(text string, to netip.Addr, own []netip.Addr) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPortFrom(ownSource(to, own), anyPort), nil
	}
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a.Unmap().WithZone(""), anyPort), nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return a, fmt.Errorf("--from %q: write an address, with or without a port", text)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()), nil
}

// ownSource is what the kernel would take for the destination.
func ownSource(to netip.Addr, own []netip.Addr) netip.Addr {
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

func (e *explain) owner(p *iptables.Packet, rules *iptables.RuleSet) error {
	if e.uid == "" && e.gid == "" {
		p.UID, p.GID = stranger(rules), stranger(rules)
		return nil
	}
	names := e.process.names()
	uid, err := id("--uid", e.uid, names.User)
	if err != nil {
		return err
	}
	gid, err := id("--gid", e.gid, names.Group)
	if err != nil {
		return err
	}
	switch {
	case uid == nil:
		uid = stranger(rules)
	case gid == nil:
		gid = uid
	}
	p.UID, p.GID = uid, gid
	return nil
}

func id(flag, text string, find func(string) (uint32, error)) (*uint32, error) {
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

// stranger is an id that no rule speaks of, or of the groups that alone are captured the first.
func stranger(rules *iptables.RuleSet) *uint32 {
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

// answer is what explain prints.
type answer struct {
	Packet string `json:"packet"`
	iptables.Explanation
}

func (e *explain) print(w io.Writer, p iptables.Packet, x iptables.Explanation) error {
	if !e.all {
		x.Steps = slices.DeleteFunc(x.Steps, func(s iptables.Step) bool { return s.Missed != "" })
	}
	if e.format != "" {
		return printAs(w, e.format, answer{p.String(), x})
	}
	fmt.Fprintf(w, "%s\n\n%s\n", p, x.Why)
	if len(x.Steps) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\nTABLE\tCHAIN\tRULE\t")
	for _, s := range x.Steps {
		text := s.Rule.String()
		if s.Missed != "" {
			text = "no: " + s.Missed
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Table, s.Chain, s.Rule.ID, text)
	}
	return t.Flush()
}
