package scripts

import (
	"strings"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// ChargeArgs returns the first arguments of Charge. Those of each key follow, from AppendKeyCharge.
func ChargeArgs(limits []limit.Limit, now state.At, move state.Move) []any {
	args := make([]any, 0, 6+3*len(limits)+2+3*len(limits))
	if args = append(args, now.Micros); move.Version > 0 {
		args = append(args, move.Mover.FenceID(), move.Version, int(move.Step), move.End(now))
	} else {
		args = append(args, "", 0, 0, 0)
	}
	args = append(args, len(limits))
	for i := range limits {
		l := &limits[i]
		args = append(args, state.AppendID(nil, l))
		switch l.Algorithm {
		case limit.SlidingWindow:
			args = append(args, l.Precision.Milliseconds(), int64(l.Window/l.Precision))
		case limit.Bucket:
			args = append(args, l.Max)
		default:
			args = append(args, l.Window.Milliseconds())
		}
	}
	return args
}

// AppendCharges appends the keys and arguments of a call of Charge for n keys, none of which moves. Each has a mark beside what a
// take is given.
func (p *Plan) AppendCharges(args []any, nowMicros int64, n int, charge func(i int) (*KeyTake, *state.Mark)) []any {
	for i := range n {
		take, _ := charge(i)
		args = append(args, &take.Key)
	}
	args = append(args, ChargeArgs(p.Limits, state.At{Micros: nowMicros}, state.Move{})...)
	for i := range n {
		take, mark := charge(i)
		args = AppendKeyCharge(args, p.Limits, state.At{Micros: nowMicros, Phase: take.Phase}, take.Cost, take.Floor, mark)
	}
	return args
}

// ParseCharges decodes the reply of Charge for n keys.
func ParseCharges(reply string, n int) (Replies, error) {
	if n == 1 {
		return Replies{reply}, nil
	}
	if strings.Count(reply, " ") != n || reply[0] != ' ' {
		return Replies{}, state.ErrCorruptState
	}
	return Replies{reply[1:]}, nil
}

// AppendKeyCharge appends the arguments of Charge for one key.
func AppendKeyCharge(args []any, limits []limit.Limit, now state.At, cost int64, floor string, mark *state.Mark) []any {
	args = append(args, cost, floor)
	for i := range limits {
		l := &limits[i]
		at := mark.Under(l, i, now)
		switch {
		case l.Algorithm == limit.Bucket:
			micros, fraction := l.Refill(cost)
			args = append(args, at, micros, fraction)
		case at == 0:
			args = append(args, -state.End(l, now))
		default:
			args = append(args, at/1000)
		}
	}
	return args
}
