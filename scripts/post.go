package scripts

import (
	"strconv"
	"strings"
)

// PostArgs returns the arguments of Post.
func PostArgs(version int64, digest, text string) []any { return []any{version, digest, text} }

// ParsePost decodes a stored announcement, or a reply of Post: all of it or its first line. The version is 0 if it is
// malformed.
func ParsePost(reply string) (version int64, digest, text string) {
	head, text, _ := strings.Cut(reply, "\n")
	number, digest, _ := strings.Cut(head, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		version = 0
	}
	return version, digest, text
}
