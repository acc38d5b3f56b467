// Package house keeps the rules of which folder may import which. It holds nothing but their test.
package house
