package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// checkStored returns an error that names what is stored instead if no limit of the policy has counted anything: a count of 0
// would look the same for a key that isn't used and for a key that is stored elsewhere.
func (o *keyOptions) checkStored(ctx context.Context, k *keyCounts, snapshot backend.Snapshot, req backend.Request) error {
	var there []string
	for one := range snapshot.State.All(state.At{Micros: snapshot.Now}) {
		for i := range req.Policy.Limits {
			if string(state.AppendID(nil, &req.Policy.Limits[i])) == string(state.AppendID(nil, &one.Limit)) {
				return nil
			}
		}
		there = append(there, withoutMax(one.Limit))
	}
	err := fmt.Errorf("nothing is stored of this key under prefix %q, policy %q and these limits", o.Prefix, req.Policy.Name)
	if len(there) == 0 {
		found := k.search(ctx, req.Key)
		return found.wrap(err)
	}
	return fmt.Errorf("%w: the policy has counted it under %s", err, strings.Join(there, ", "))
}

// withoutMax is a limit as it is written, with ? for what a state doesn't hold.
func withoutMax(l limit.Limit) string {
	text := "?" + strings.TrimPrefix(l.String(), "0")
	if l.Algorithm == limit.Bucket {
		text = strings.TrimSuffix(text, "0") + "?"
	}
	return text
}

// peekStored prints what is stored of a key, under all policies or the named one.
func (o *keyOptions) peekStored(ctx context.Context, key string, named bool) error {
	// Load returns the whole state, whatever the limits. A limit of this length makes a router load from all previous owners too.
	policy := limit.Policy{Name: o.Name, Limits: []limit.Limit{limit.Fixed(1, limit.MaxWindow)}}
	if err := policy.Validate(); err != nil {
		return cli.Usage(err)
	}
	return o.withKey(ctx, key, false, func(k *keyCounts) error {
		found := search{policies: []string{o.Name}}
		if !named {
			found = k.search(ctx, key)
		}
		r := keyStored{Key: key, Group: k.group, Epoch: k.epoch}
		var elsewhere []error // a key is handed over policy by policy
		for _, policy.Name = range found.policies {
			snapshot, err := k.load(ctx, backend.Request{Key: key, Policy: &policy, Cost: 1})
			if _, moved := errors.AsType[*handedOverError](err); moved {
				elsewhere = append(elsewhere, fmt.Errorf("policy %q: %w", policy.Name, err))
				continue
			}
			if err != nil {
				return err
			}
			if one := storedLimits(snapshot); len(one) > 0 {
				r.Policies = append(r.Policies, policyStored{policy.Name, one})
			}
		}
		switch {
		case len(r.Policies) > 0:
		case len(elsewhere) > 0:
			return errors.Join(elsewhere...)
		case named:
			found = k.search(ctx, key)
			return found.wrap(fmt.Errorf("nothing is stored of this key under prefix %q and policy %q", o.Prefix, o.Name))
		default:
			found.policies = nil // their counts have expired
			return found.wrap(fmt.Errorf("nothing is found of this key under prefix %q", o.Prefix))
		}
		if err := errors.Join(append(found.failed, elsewhere...)...); err != nil {
			r.Incomplete = err.Error()
		}
		return o.Print(r)
	})
}

func storedLimits(snapshot backend.Snapshot) (all []limitStored) {
	for one := range snapshot.State.All(state.At{Micros: snapshot.Now}) {
		s := limitStored{Limit: withoutMax(one.Limit), Reset: cli.Timestamp(one.ResetAt)}
		if one.Limit.Algorithm != limit.Bucket {
			s.Used, s.Refunded = &one.Used, &one.Refunded
		}
		all = append(all, s)
	}
	return all
}

// keyStored is all that is stored of a key.
type keyStored struct {
	Key        string         `json:"key"`
	Group      string         `json:"group,omitempty"`
	Epoch      uint64         `json:"epoch,omitempty"`
	Policies   []policyStored `json:"policies"`
	Incomplete string         `json:"incomplete,omitempty"` // why there may be more
}

type policyStored struct {
	Policy string        `json:"policy"`
	Limits []limitStored `json:"limits"`
}

type limitStored struct {
	Limit    string        `json:"limit"` // with ? for Max and burst
	Used     *int64        `json:"used,omitempty"`
	Refunded *int64        `json:"refunded,omitempty"` // neither is there of a bucket
	Reset    cli.Timestamp `json:"reset,omitzero"`     // when the full quota is back; not there where nothing is used
}

func (k keyStored) Text(w io.Writer) {
	fmt.Fprintf(w, "KEY\tGROUP\n%s\t%s\n\n", cli.Cell(k.Key), cli.Cell(k.Group))
	fmt.Fprint(w, "POLICY\tLIMIT\tUSED\tREFUNDED\tRESET\n")
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	for _, p := range k.Policies {
		for _, l := range p.Limits {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cli.Cell(p.Policy), l.Limit, number(l.Used), number(l.Refunded), l.Reset)
		}
	}
	fmt.Fprint(w, "\n?: Max and burst are not stored. With the policy's limits, peek prints what remains.\n")
	for line := range strings.Lines(k.Incomplete) {
		fmt.Fprintf(w, "There may be more: %s\n", cli.Cell(strings.TrimSpace(line)))
	}
}
