package throttler

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// ErrDenyListed is what Wait returns for a key on a deny list: no waiting helps.
var ErrDenyListed = errors.New("throttler: the key is on a deny list")

// lists are keys that are decided without a backend: those of a Config or of a Registry.
type lists struct {
	allow, deny keyTable[struct{}]
}

// newLists is nil if nobody is listed.
func newLists(allow, deny []string) *lists {
	if len(allow) == 0 && len(deny) == 0 {
		return nil
	}
	table := func(entries []string) keyTable[struct{}] {
		all := make(map[string]struct{}, len(entries))
		for _, entry := range entries {
			all[entry] = struct{}{}
		}
		return newKeyTable(all)
	}
	return &lists{allow: table(allow), deny: table(deny)}
}

func (l *lists) allows(key string) (ok bool) {
	if l != nil {
		_, ok = l.allow.find(key)
	}
	return ok
}

func (l *lists) denies(key string) (ok bool) {
	if l != nil {
		_, ok = l.deny.find(key)
	}
	return ok
}

// listed decides a request whose key is on a list, and reports whether it is. Err is what is wrong with the request so
// far: only a cost that the limits can't hold is of no matter to a key that they don't bind.
func (t *Throttler) listed(live *policies, key string, err error, d *Decision) bool {
	if err != nil && !errors.Is(err, limit.ErrCostExceedsLimit) {
		return false
	}
	var its *lists
	if live != nil {
		its = live.lists
	}
	switch {
	case t.lists.denies(key) || its.denies(key):
		*d = Decision{RetryAfter: limit.Never}
	case t.lists.allows(key) || its.allows(key):
		*d = Decision{Allowed: true, Remaining: limit.MaxCount}
	default:
		return false
	}
	d.At, d.Source, d.Guarantee = time.Now(), Listed, Exact
	return true
}

// checkList refuses entries that list nobody. It names them by their place: they are keys.
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
