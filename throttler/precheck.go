package throttler

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// Precheck says whether requests are looked up before they are charged. The look goes to a replica while one is fit to be
// read, and what it denies is denied without asking the primary: in a window counts only grow, so that a replica may be
// behind but not wrong. (A refund that is still on its way to the replica makes it deny for that long.) What it would
// admit is asked for again, at the primary: such requests pay for two trips.
//
// It is GitHub's flow ("Lessons learned implementing a sharded, replicated rate limiter with Redis"). A backend.Lease, which
// knows what it has seen denied, saves both trips.
type Precheck uint8

const (
	// PrecheckNever charges at once.
	PrecheckNever Precheck = iota

	// PrecheckAlways looks first.
	PrecheckAlways

	// PrecheckAuto looks first while at least half of the latest requests under the policy were denied, and until
	// fewer than a quarter are. With half of the requests denied a request makes 1.5 trips in the mean, and the
	// primary half of its work: a look costs a replica an eighth of what a take costs the primary.
	PrecheckAuto
)

func (p Precheck) String() string {
	names := [...]string{"never", "always", "auto"}
	if int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("precheck(%d)", uint8(p))
}

// precheckWithin bounds a look: it must not use up the time that the take needs.
const precheckWithin = 25 * time.Millisecond

// precheck decides which requests are looked up first.
type precheck struct {
	mode   Precheck
	peeker backend.Peeker
	seed   maphash.Seed
	shares [64]denialShare // by a hash of the policy's name: as many as there may be, they take no more room
}

func newPrecheck(mode Precheck, b backend.Backend) precheck {
	peeker, _ := b.(backend.Peeker)
	return precheck{mode: mode, peeker: peeker, seed: maphash.MakeSeed()}
}

// denies looks a request up, if that pays, and reports whether the answer is a denial.
func (p *precheck) denies(
	ctx context.Context, key string, policy *limit.Policy, cost int64, trace *Trace, result *backend.Result,
) bool {
	if p.mode == PrecheckNever || p.mode == PrecheckAuto && !p.share(policy).high() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, precheckWithin)
	defer cancel()
	looked, err := p.peeker.Peek(ctx, backend.Request{Key: key, Policy: policy, Cost: cost, Trace: trace})
	if err != nil || looked.Allowed {
		return false
	}
	*result = looked
	return true
}

// record takes note of how a request was decided.
func (p *precheck) record(policy *limit.Policy, denied bool) {
	if p.mode == PrecheckAuto {
		p.share(policy).add(denied)
	}
}

func (p *precheck) share(policy *limit.Policy) *denialShare {
	return &p.shares[maphash.String(p.seed, policy.Name)%uint64(len(p.shares))]
}

// denialShare is the share of denials among the latest requests: a mean in which each counts for 1/64, and less with each
// that follows. Of two updates at once one may be lost.
type denialShare struct {
	state atomic.Uint32 // the share in 1/2^16; and in the last bit whether it is high
}

const (
	shareOne  = 1 << 16
	shareHigh = shareOne / 2
	shareLow  = shareOne / 4
)

func (d *denialShare) high() bool { return d.state.Load()&1 != 0 }

func (d *denialShare) add(denied bool) {
	before := d.state.Load()
	share, high := int32(before>>1), before&1
	target := int32(0)
	if denied {
		target = shareOne
	}
	share += (target - share) / 64
	switch {
	case share >= shareHigh:
		high = 1
	case share < shareLow:
		high = 0
	}
	if after := uint32(share)<<1 | high; after != before {
		d.state.Store(after)
	}
}
