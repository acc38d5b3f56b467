// Package pemtext decodes PEM text strictly.
package pemtext

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"strings"
)

// begin is the prefix of a block's first line.
const begin = "-----BEGIN"

// Blocks returns the PEM blocks of a text. It returns an error if a block is incomplete, because the file is truncated
// or still being written. encoding/pem skips such a block, and a missing root certificate or revocation list would not
// be noticed.
func Blocks(text []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	begun := 0
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(begin)) || strings.HasPrefix(begin, string(line)) { // the second condition detects a truncated last line
			begun++
		}
	}
	if begun > len(blocks) {
		return blocks, fmt.Errorf("%d of its %d PEM blocks are incomplete", begun-len(blocks), begun)
	}
	return blocks, nil
}
