package xtables

import (
	"fmt"

	"github.com/google/nftables"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// dropTable removes a table that we created, unless another program has added chains or rules to it. It uses nftables,
// because iptables cannot remove a table. It logs failures and does not return them.
func (b *Backend) dropTable(t tool, table iptables.Table, ours ownRules) {
	if t.flavour != NFT || !madeFor(ours) {
		return
	}
	if err := b.dropEmpty(t.family, string(table)); err != nil {
		b.cfg.Logger.Debug("cannot remove a table", "table", table, "program", t.String(), "error", err)
	}
}

func (b *Backend) dropEmpty(family iptables.Families, name string) error {
	kind := nftables.TableFamilyIPv4
	if family == iptables.IPv6 {
		kind = nftables.TableFamilyIPv6
	}
	return b.ns.runInside(func() error {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		// Close the connection in the background: the kernel blocks close for 10 ms and more, until no processor uses
		// the removed rules. During that time, a guard could still block new connections of the other address family.
		defer func() { go func() { _ = c.CloseLasting() }() }()
		table := &nftables.Table{Name: name, Family: kind}
		chains, err := c.ListChainsOfTableFamily(kind)
		if err != nil {
			return err
		}
		for _, chain := range chains {
			if chain.Table.Name != name {
				continue
			}
			if chain.Hooknum == nil || chain.Policy != nil && *chain.Policy != nftables.ChainPolicyAccept {
				return fmt.Errorf("another program uses the chain %s", chain.Name)
			}
			rules, err := c.GetRules(table, chain)
			if err != nil {
				return err
			}
			if len(rules) > 0 {
				return fmt.Errorf("the chain %s has rules", chain.Name)
			}
		}
		c.DelTable(table)
		return c.Flush()
	})
}
