// Package archtest tests rules for the whole repository: which package may import which, and the names and words in
// code, comments and documentation. It contains only tests.
package archtest
