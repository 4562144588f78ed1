package storedname

import (
	"regexp"
	"strconv"

	"github.com/sluice-go/sluice/limit"
)

// DefaultPrefix is the prefix where none is configured.
const DefaultPrefix = "sl:"

var validPrefix = regexp.MustCompile(`^[A-Za-z0-9_:.-]{1,16}$`)

// CheckPrefix rejects a prefix that names can't begin with. Field names it in the error.
func CheckPrefix(field, prefix string) error {
	if !validPrefix.MatchString(prefix) {
		return &limit.Error{Field: field, Value: strconv.Quote(prefix), Bound: "must match [A-Za-z0-9_:.-]{1,16}"}
	}
	return nil
}
