package lease

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/limit"
)

// Config configures a Lease. The zero value of each field is a documented default.
type Config struct {
	// Processes is how many processes hold leases on the same keys, those of a rolling deploy included. A batch is at most half
	// of a limit's remaining quota, divided by it. Zero: 10. With Slack it is part of the bound, and must be set.
	Processes int

	// Batch is the size of a key's first batch; later sizes follow the demand. Zero: a thousandth of the smallest limit of
	// the key's policy, or a sixteenth of it divided by Processes if that is less; at least 1. Negative: no leases, only the
	// local view.
	Batch int64

	// Steady keeps batches at their first size, and leases at Life. Near the end of a limit batches still shrink.
	Steady bool

	// Life is how long a lease is held where quota is scarce; the rest is returned then. Elsewhere a lease is held longer: until
	// half of what remained of the limit is used up at the mean rate of its window so far. It never outlives its window, the
	// sub-bucket of a sliding window, or on a token bucket state.MaxBucketLease. Only a key that was last used less than half of
	// such a life ago is leased. Zero: 5 s.
	Life time.Duration

	// Recheck is the interval at which one request for a locally denied key is forwarded: a refund or a reset by another
	// process may have made room. Zero: 1 s. Negative: the local view denies nothing.
	Recheck time.Duration

	// Slack is the share of what remains of a limit that all processes together may admit on credit: before it is charged. From
	// 0 to below 1. A request on credit makes no call; what a key owes is charged every Flush. A window then holds at most
	// Max + Processes x max(floor(Slack x Max / Processes), Least), and what is admitted is backend.Bounded: see [BoundError].
	// Where less than Processes / Slack remains of a limit, requests are decided as without it. Zero: nothing is on credit.
	Slack float64

	// Flush is how long, at most, a charge waits for others of its key before it is sent. From 1 ms to 1 minute. A longer one
	// makes fewer calls within the same bound; a key that nears its allowance is charged earlier. What waits when its windows end
	// is never charged. It has no effect without Slack. Zero: 50 ms.
	Flush time.Duration

	// Least is how much each process may admit on credit while at least that much remains, where its share by Slack is less. It
	// doesn't apply to token buckets, and has no effect without Slack. Zero: no more than the share.
	Least int64

	// MaxKeys bounds, approximately, the number of views. A view takes about 700 bytes, and at most about 900; about 800 more
	// with Slack. Keys that owe are never evicted: if all do, other keys are decided by the server. Zero: 65,536.
	MaxKeys int

	// Now replaces the clock, for tests. Only differences of its readings matter: a step counts as time that has passed, so
	// what is owed to a window may be dropped before that ends. Nil: the monotonic clock of the process, with the wall clock to
	// detect that the host was suspended: a forward step of that looks the same, and ends leases and credit until the next
	// reply.
	Now func() time.Time
}

const (
	defaultLeaseProcesses = 10
	defaultLeaseLife      = 5 * time.Second
	defaultLeaseRecheck   = time.Second
	defaultLeaseKeys      = 1 << 16
	defaultLeaseFlush     = 50 * time.Millisecond
	minFlush              = time.Millisecond
	maxFlush              = time.Minute
	firstBatchDivisor     = 1000 // the first batch is the smallest limit divided by it,
	firstShareDivisor     = 16   // or a process's share of that limit divided by it
)

func (c Config) withDefaults() Config {
	c.Processes = cmp.Or(c.Processes, defaultLeaseProcesses)
	c.Life = cmp.Or(c.Life, defaultLeaseLife)
	c.Recheck = cmp.Or(c.Recheck, defaultLeaseRecheck)
	c.Flush = cmp.Or(c.Flush, defaultLeaseFlush)
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultLeaseKeys)
	return c
}

// life returns how long a lease on a key of that half-life may be held within its window, in nanoseconds.
func (c *Config) life(halfLife int64) int64 {
	if c.Steady {
		return int64(c.Life)
	}
	return max(int64(c.Life), halfLife)
}

func (c Config) validate(inner backend.Backend) error {
	errs := fielderrors.List{Prefix: "lease: "}
	if typednil.Is(inner) {
		errs.Add("inner", typednil.Name(inner), "must not be nil")
	} else if _, ok := inner.(backend.Refunder); c.Batch >= 0 && !ok {
		errs.Add("inner", reflect.TypeOf(inner), "must be a Refunder, to take back what is left of a lease")
	}
	if c.Processes < 0 || c.Processes > math.MaxInt32 {
		errs.Add("Processes", c.Processes, fmt.Sprintf("must be from 0 to %d", math.MaxInt32))
	}
	if c.Batch > limit.MaxCount {
		errs.Add("Batch", c.Batch, fmt.Sprintf("must be at most %d", limit.MaxCount))
	}
	if c.Life < 0 || c.Life > limit.MaxWindow {
		errs.Add("Life", c.Life, fmt.Sprintf("must be from 0 to %s", limit.MaxWindow))
	}
	if c.Recheck > limit.MaxWindow {
		errs.Add("Recheck", c.Recheck, fmt.Sprintf("must be at most %s", limit.MaxWindow))
	}
	c.validateCredit(inner, &errs)
	fielderrors.NotNegative(&errs, "MaxKeys", c.MaxKeys)
	return errs.Err()
}

func (c Config) validateCredit(inner backend.Backend, errs *fielderrors.List) {
	if !(c.Slack >= 0 && c.Slack < 1) { // also of NaN
		errs.Add("Slack", c.Slack, "must be from 0 to below 1")
	} else if c.Slack > 0 {
		if c.Processes == 0 {
			errs.Add("Processes", c.Processes, "must be set with Slack: the bound depends on it")
		}
		if _, ok := inner.(backend.Charger); !ok && !typednil.Is(inner) {
			errs.Add("inner", reflect.TypeOf(inner), "must be a Charger, to be charged what is admitted on credit")
		}
	}
	if c.Flush != 0 && (c.Flush < minFlush || c.Flush > maxFlush) {
		errs.Add("Flush", c.Flush, fmt.Sprintf("must be from %s to %s", minFlush, maxFlush))
	}
	if c.Least < 0 || c.Least > limit.MaxCount {
		errs.Add("Least", c.Least, fmt.Sprintf("must be from 0 to %d", limit.MaxCount))
	}
}
