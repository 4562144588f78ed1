package backend

import (
	"regexp"
	"strconv"

	"github.com/sluice-go/sluice/limit"
)

const defaultPrefix = "sl:"

var validPrefix = regexp.MustCompile(`^[A-Za-z0-9_:.-]{1,16}$`)

func checkPrefix(field, prefix string) error {
	if !validPrefix.MatchString(prefix) {
		return &limit.Error{Field: field, Value: strconv.Quote(prefix), Bound: "must match [A-Za-z0-9_:.-]{1,16}"}
	}
	return nil
}
