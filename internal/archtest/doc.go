// Package archtest tests rules for the whole repository: which packages a package may import, and which names and words
// code, comments and documentation may contain. It contains only tests.
package archtest
