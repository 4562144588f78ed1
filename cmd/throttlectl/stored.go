package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// nothingStored is the error that none of a policy's limits has counted anything of a key, and names what is stored in its
// place. A count of 0 would look the same for a key that isn't used and for one that is looked for in the wrong place.
func (o *keyOptions) nothingStored(snapshot backend.Snapshot, policy *limit.Policy) error {
	there := storedLimits(snapshot)
	for i := range policy.Limits {
		if slices.Contains(there, string(policy.Limits[i].AppendID(nil))) {
			return nil
		}
	}
	err := fmt.Errorf("nothing is stored of this key under prefix %q, policy %q and these limits", o.prefix, policy.Name)
	if len(there) == 0 {
		return fmt.Errorf("%w: it isn't used, or counted elsewhere", err)
	}
	return fmt.Errorf("%w: the policy has counted it under %s (f fixed, a aligned, g staggered, s sliding, b bucket; window~precision)",
		err, strings.Join(there, ", "))
}

// storedLimits are the identities of the limits that a state has live counts of, as package limit writes them.
func storedLimits(snapshot backend.Snapshot) (all []string) {
	state := snapshot.State.Clone()
	state.Forget(limit.At{Micros: snapshot.Now})
	for entry := range strings.SplitSeq(state.String(), ";") {
		id, _, _ := strings.Cut(entry, ":")
		if len(id) > 1 { // the stamps of a hand-over have no window
			all = append(all, id)
		}
	}
	return all
}
