package scripts

import (
	"strconv"
	"strings"
)

// PostArgs are the arguments of Post.
func PostArgs(version int64, digest, text string) []any { return []any{version, digest, text} }

// ParsePost decodes what Post has stored, or its reply: a notice, or its first line. The version is 0 if it can't be read.
func ParsePost(reply string) (version int64, digest, text string) {
	head, text, _ := strings.Cut(reply, "\n")
	number, digest, _ := strings.Cut(head, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		version = 0
	}
	return version, digest, text
}
