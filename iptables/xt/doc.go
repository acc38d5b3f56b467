// Package xt puts rule sets in force with the host's iptables and ip6tables, of either flavour: one iptables-restore for
// what changes in the tables of a family, undone wholly where one of them fails. The binaries are found, and their
// versions told apart, with go-iptables; what is in force is read with iptables-save, which takes no lock, makes no table
// that is not there, and shows a whole table at one moment.
package xt
