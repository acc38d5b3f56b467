package xtables

import (
	"fmt"

	"github.com/google/nftables"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// dropTable removes a table that was created for our rules, unless another program has added something to it. iptables
// leaves the empty table behind, and has no command to remove it. Failures are ignored.
func (b *Backend) dropTable(t tool, table iptables.Table, ours ownRules) {
	if t.flavour != NFT || !madeFor(ours) {
		return
	}
	if err := b.dropEmpty(t.family, string(table)); err != nil {
		b.cfg.Logger.Debug("an empty table remains", "table", table, "of", t.String(), "error", err)
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
		// The kernel blocks close until removed rules are unused on every processor, which takes 10 ms and more.
		// Meanwhile, new connections of the other family may wait for this process.
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
				return fmt.Errorf("another program uses its chain %s", chain.Name)
			}
			rules, err := c.GetRules(table, chain)
			if err != nil {
				return err
			}
			if len(rules) > 0 {
				return fmt.Errorf("its chain %s has rules", chain.Name)
			}
		}
		c.DelTable(table)
		return c.Flush()
	})
}
