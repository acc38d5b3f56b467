// Package pemtext decodes PEM text strictly.
package pemtext

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"strings"
)

// begin is the beginning of a block's first line.
const begin = "-----BEGIN"

// Blocks returns the blocks of a text. It returns an error for an incomplete block, as in a file that is still being
// written or was truncated. encoding/pem skips such a block, and the loss of a trusted root or a revocation list would
// remain unnoticed.
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
