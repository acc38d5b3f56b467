package status

import (
	"cmp"
	"mime"
	"strconv"
	"strings"
)

// accepts says whether headers of what a caller takes name something. A quality of nought is a refusal.
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
