package inspect

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/internal/storedname"
	"github.com/sluice-go/sluice/limit/state"
)

// A search scans the names of a server in steps, which don't delay others, and ends after --timeout or searchMost names.
const (
	searchStep = 1000
	searchMost = 10_000_000
	readMost   = 100 // values to read of the names found
)

var (
	policyPart = regexp.MustCompile(`^[~?]*[a-z0-9_-]{0,32}$`) // ~ and ? mark shadows
	namePart   = regexp.MustCompile(`^[A-Za-z0-9_:.-]{1,16}[~?]*[a-z0-9_-]{0,32}$`)
)

// search is where a key is stored.
type search struct {
	policies []string // under the prefix
	others   []string // starts of other names that end in the key: of another prefix, or of a longer key
	failed   []error  // why it may be stored elsewhere, too
}

// globbed escapes the special characters of MATCH.
var globbed = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// search scans the servers that count a key now or have counted it under an earlier topology.
func (k *keyCounts) search(ctx context.Context, key string) (all search) {
	end := ":" + string(storedname.AppendKey(nil, key))
	var mu sync.Mutex // guards all
	k.cluster.EachPrimary(ctx, k.owners, func(client *redis.Client, err error) {
		var names []string
		if err == nil {
			names, err = k.scan(ctx, client, end)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			all.failed = append(all.failed, err)
		}
		for _, name := range names {
			start := strings.TrimSuffix(name, end)
			if policy, ours := strings.CutPrefix(start, k.cluster.Prefix); ours && policyPart.MatchString(policy) {
				all.policies = append(all.policies, policy)
			} else {
				all.others = append(all.others, start)
			}
		}
	})
	for _, list := range []*[]string{&all.policies, &all.others} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return all
}

// scan finds the names of a server that end so and hold a state.
func (k *keyCounts) scan(ctx context.Context, client *redis.Client, end string) (states []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.cluster.Timeout)
	defer cancel()
	server := client.Options().Addr
	read, cursor := make(map[string]bool), uint64(0)
	for looked := 0; ; {
		page, next, err := client.Scan(ctx, cursor, "*"+globbed.Replace(end), searchStep).Result()
		switch {
		case redis.HasErrorPrefix(err, "NOPERM"):
			return nil, fmt.Errorf("%s can't be searched, for that takes the right +scan: %w", server, err)
		case err != nil && errors.Is(deadline.Ended(ctx), context.DeadlineExceeded):
			return states, fmt.Errorf("%s was not searched to its end within --timeout = %v", server, k.cluster.Timeout)
		case err != nil:
			return states, fmt.Errorf("%s: %w", server, err)
		}
		for _, name := range page {
			if read[name] || !namePart.MatchString(strings.TrimSuffix(name, end)) {
				continue
			}
			if len(read) == readMost {
				return states, fmt.Errorf("%s has more than %d names that end in the key", server, readMost)
			}
			if read[name] = true; holdsState(ctx, client, name) {
				states = append(states, name)
			}
		}
		if looked += searchStep; next == 0 {
			return states, nil
		}
		if looked >= searchMost {
			return states, fmt.Errorf("%s has more than %d names: the rest was not searched", server, searchMost)
		}
		cursor = next
	}
}

// holdsState reports whether a value is a state, or one that this login must not read.
func holdsState(ctx context.Context, client *redis.Client, name string) bool {
	text, err := client.Get(ctx, name).Result()
	if err != nil {
		return redis.HasErrorPrefix(err, "NOPERM")
	}
	state, err := state.ParseState(text)
	return err == nil && !state.Empty()
}

// wrap adds to an error where else the key is stored.
func (a *search) wrap(err error) error {
	if len(a.policies) > 0 {
		err = fmt.Errorf("%w: it is stored under the policies %s", err, quotedList(a.policies))
	}
	if len(a.others) > 0 {
		err = fmt.Errorf("%w: names that end in this key are stored with the prefix and policy %s", err, quotedList(a.others))
	}
	switch {
	case len(a.failed) > 0:
		return fmt.Errorf("%w, and the search for it is incomplete: %w", err, errors.Join(a.failed...))
	case len(a.policies)+len(a.others) == 0:
		return fmt.Errorf("%w, nor under any other: it isn't used, or counted on other servers", err)
	}
	return err
}

// quotedList quotes the first ten.
func quotedList(all []string) string {
	const most = 10
	var b strings.Builder
	for i, one := range all[:min(most, len(all))] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Quote(one))
	}
	if more := len(all) - most; more > 0 {
		fmt.Fprintf(&b, ", %d more", more)
	}
	return b.String()
}
