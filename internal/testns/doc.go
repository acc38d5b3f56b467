// Package testns creates network namespaces and mount namespaces for tests, and runs functions and programs in them.
package testns
