// Package pemtext reads PEM texts as wholes.
package pemtext

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"strings"
)

// begin begins the first line of each block.
const begin = "-----BEGIN"

// Blocks gives the blocks of a text. That one begins and is not whole, as in a file that is being written or was cut off, is
// an error: encoding/pem passes over it, and what is missing, a root that is trusted or a list of what is revoked, would be
// missed by nobody.
func Blocks(text []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	begun := 0
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(begin)) || strings.HasPrefix(begin, string(line)) { // the latter is a last line that was cut
			begun++
		}
	}
	if begun > len(blocks) {
		return blocks, fmt.Errorf("%d of its %d PEM blocks are not whole", begun-len(blocks), begun)
	}
	return blocks, nil
}
