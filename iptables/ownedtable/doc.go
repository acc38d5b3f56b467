// Package ownedtable creates nftables tables that the kernel removes when the process ends.
package ownedtable
