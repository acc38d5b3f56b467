// Package owned makes nftables tables that last no longer than the process that made them.
package owned
