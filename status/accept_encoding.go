package status

import (
	"cmp"
	"mime"
	"strconv"
	"strings"
)

// accepts reports whether headers (Accept or Accept-Encoding) list exactly the name what, with a quality above 0.
func accepts(headers []string, what string) bool {
	for _, header := range headers {
		for item := range strings.SplitSeq(header, ",") {
			name, parameters, err := mime.ParseMediaType(item)
			if err != nil || name != what {
				continue
			}
			q, err := strconv.ParseFloat(cmp.Or(parameters["q"], "1"), 64)
			return err == nil && q > 0
		}
	}
	return false
}
