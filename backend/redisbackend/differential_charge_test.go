//go:build unix

package redisbackend_test

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// charge makes a charge at the server and in the model.
func (c *contest) charge(op *operation, floor *state.State) error {
	if err := c.recall(); err != nil { // a late charge on a bucket may meet what is over, which the server may have left out
		return err
	}
	mark, cost := c.mark(op), c.spent(op)
	c.note("charge %d of %s, marked %v", cost, c.model.String(), mark)
	if floor != nil {
		c.note(", floor %s", floor.String())
	}
	began, before, kept := time.Now(), c.model.Clone(), c.client.PExpireTime(context.Background(), c.stored()).Val()
	got, err := c.redis.Charge(context.Background(), c.request(cost, floor), mark)
	c.meet("charge", floor)
	if _, refusal := c.model.Arrive(c.policy, c.at, c.move, floor, true); err != nil || refusal != nil {
		if err := c.compareRefusals(err, refusal); err != nil {
			return err
		}
		return c.compareStored()
	}
	want := c.model.Charge(c.policy, c.at, mark, cost)
	c.last = want
	c.note(" -> %s", backendtesting.Say(&want))
	mine, theirs := want.Receipt(), got.Receipt()
	if !reflect.DeepEqual(mine, theirs) {
		return fmt.Errorf("the script charges by %s\npackage limit/state by %s", sayReceipt(&theirs), sayReceipt(&mine))
	}
	if mine.Cost > 0 {
		c.receipts = append(c.receipts, mine)
	}
	c.known = append(c.known, c.model.Clone())
	if err := c.compareVerdicts(&got.Verdict, &want); err != nil {
		return err
	}
	if err := c.compareStates("the reply", got.State); err != nil {
		return err
	}
	if err := c.compareStored(); err != nil || !c.thorough || before.Equal(&c.model) {
		return err
	}
	if c.model.Until() == before.Until() && c.client.PExpireTime(context.Background(), c.stored()).Val() == kept {
		return nil // a window that goes on
	}
	return c.checkExpiry(began, true)
}

// mark is that of an earlier charge under the policy, of an earlier moment, or none.
func (c *contest) mark(op *operation) state.Mark {
	then := c.at
	switch n := op.pick2; n % 8 {
	case 0, 1:
		return state.Mark{}
	case 2, 3:
		if r := c.receipt(op); r != nil && r.Policy() == c.policy {
			return r.Mark()
		}
	case 4, 5:
		l := &c.policy.Limits[n>>8%uint64(len(c.policy.Limits))]
		then.Micros -= int64(n>>16) % (l.Window.Microseconds() + 1)
	case 6:
		then.Micros -= int64(n>>16) % 3000
	case 7:
		then.Micros += int64(n>>16) % 100_000 // of a clock that is ahead
	}
	then.Micros = max(then.Micros, 0)
	m, _ := state.MarkAt(c.policy, then)
	return m
}

// spent is a cost, which may be more than a limit holds.
func (c *contest) spent(op *operation) int64 {
	cost := c.cost(op)
	if c.at.Micros > horizon-8*limit.MaxWindow.Microseconds() {
		return cost // a bucket's arrival time and credit must stay below the last moment
	}
	switch op.cost2 % 8 {
	case 0, 1:
		return min(cost*3, limit.MaxCount)
	case 2:
		return cost + 1
	case 3:
		if op.pick%4 == 0 {
			return limit.MaxCount - int64(op.cost2>>8%3)
		}
	}
	return cost
}
