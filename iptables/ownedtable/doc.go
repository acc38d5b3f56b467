// Package ownedtable creates nftables tables that the kernel removes when the process exits.
package ownedtable
