package scripts

import (
	"strconv"
	"strings"
)

// PublishArgs returns the arguments of Publish.
func PublishArgs(version int64, digest, text string) []any { return []any{version, digest, text} }

// ParsePublish decodes a stored announcement, or a reply of Publish: all of it or its first line. The version is 0 if it is
// malformed.
func ParsePublish(reply string) (version int64, digest, text string) {
	head, text, _ := strings.Cut(reply, "\n")
	number, digest, _ := strings.Cut(head, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		version = 0
	}
	return version, digest, text
}
