// Package xtables installs rule sets with the host's iptables and ip6tables, of either flavour. One iptables-restore
// run changes the tables of a family; if one of them fails, all changes are rolled back. go-iptables finds the binaries
// and detects their versions. Rules are read with iptables-save, which takes no lock, creates no table, and prints a
// consistent snapshot of each table.
package xtables
