// Package xtables installs rule sets with the host's iptables and ip6tables, of either flavour (nft or legacy). One run
// of iptables-restore changes all tables of an address family. If a table cannot be changed, the package reverts all
// changes. It reads rules with iptables-save, which prints a consistent snapshot of each table. go-iptables detects the
// versions of the binaries.
package xtables
