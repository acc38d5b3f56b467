// Package testns makes network namespaces for tests, and runs things in them.
package testns
