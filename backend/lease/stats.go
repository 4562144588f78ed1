package lease

import "time"

// Stats counts what a Lease has done so far, and what it holds.
type Stats struct {
	Leased    int64 `json:"leased"`    // takes admitted from a lease, without a call of their own
	Denied    int64 `json:"denied"`    // takes denied by the local view, without a call
	Forwarded int64 `json:"forwarded"` // takes that were forwarded
	Fetches   int64 `json:"fetches"`   // batches requested
	Returned  int64 `json:"returned"`  // cost of leases that was returned
	Lost      int64 `json:"lost"`      // cost that may be charged but is neither leased nor returned: it counts until its windows end
	Stranded  int64 `json:"stranded"`  // cost that is leased and unspent, or a pending return
	Keys      int   `json:"keys"`      // views

	// With Config.Slack only.
	OnCredit    int64         `json:"on_credit,omitempty"`    // takes admitted on credit, without a call
	Flushes     int64         `json:"flushes,omitempty"`      // charges sent
	Debt        int64         `json:"debt,omitempty"`         // cost admitted on credit and not known to be charged
	DebtAge     time.Duration `json:"debt_age_ns,omitempty"`  // how long the oldest of that waits to be sent, or for its reply
	LostCharges int64         `json:"lost_charges,omitempty"` // cost admitted on credit that may never have been charged
	Overshoot   int64         `json:"overshoot,omitempty"`    // the most by which a reply to a charge showed a limit above its Max
}

// Stats returns the counters of the Lease, summed over its shards.
func (l *Lease) Stats() Stats {
	var sum Stats
	now := l.clock()
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		sum.Leased += s.stats.Leased
		sum.Denied += s.stats.Denied
		sum.Forwarded += s.stats.Forwarded
		sum.Fetches += s.stats.Fetches
		sum.Returned += s.stats.Returned
		sum.Lost += s.stats.Lost
		sum.Keys += s.cells.Len
		sum.Stranded += s.pendingCost
		sum.OnCredit += s.stats.OnCredit
		sum.Flushes += s.stats.Flushes
		sum.Overshoot = max(sum.Overshoot, s.stats.Overshoot)
		for c := range s.cells.All() {
			sum.Stranded += c.Value.unspentLocked(now)
			s.owesLocked(&c.Value, now) // forgets what is over
			sum.Debt, sum.DebtAge = c.Value.debt.addTo(sum.Debt, sum.DebtAge, now)
		}
		sum.LostCharges += s.stats.LostCharges
		s.mu.Unlock()
	}
	return sum
}

// addTo adds what is owed to a sum, and the age of its oldest part to the largest so far.
func (d *debt) addTo(sum int64, age time.Duration, now int64) (int64, time.Duration) {
	if d == nil || d.owed == 0 {
		return sum, age
	}
	if d.flush != nil {
		age = max(age, time.Duration(now-d.flush.since))
	}
	for i := range d.segments {
		if g := &d.segments[i]; g.pending > 0 {
			age = max(age, time.Duration(now-g.since))
		}
	}
	return sum + d.owed, age
}
