package throttler

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// ErrDenyListed is what Wait returns for a key on a deny list, which waiting doesn't change.
var ErrDenyListed = errors.New("throttler: the key is on a deny list")

// listed decides a request whose key is on a list, and reports whether it is. Err is the problem of the request so far: a key on
// a list is decided in spite of a cost that the limits can't hold.
func (t *Throttler) listed(view PolicyView, key string, err error, d *Decision) bool {
	if !t.hasLists && view == nil || err != nil && !errors.Is(err, limit.ErrCostExceedsLimit) {
		return false
	}
	var allow, deny bool
	if view != nil {
		allow, deny = view.Listed(key)
	}
	switch {
	case deny || t.deny.Has(key):
		*d = Decision{RetryAfter: limit.Never}
	case allow || t.allow.Has(key):
		*d = Decision{Allowed: true, Remaining: limit.MaxCount}
	default:
		return false
	}
	d.At, d.Source, d.Guarantee = time.Now(), Listed, Exact
	return true
}

// checkList refuses empty entries. It names them by their index: entries are keys, which errors must not contain.
func checkList(field string, entries []string) (errs []error) {
	for i, entry := range entries {
		if entry == "" {
			errs = append(errs, &limit.Error{
				Field: field + ": entry " + strconv.Itoa(i+1), Value: `""`, Bound: "must not be empty",
			})
		}
	}
	return errs
}
