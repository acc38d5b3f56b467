// Package archtest tests rules that hold for the whole repository: which folder may import which, and the names and words of the
// code. It contains only tests.
package archtest
