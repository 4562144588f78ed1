package scripts

import (
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// ChargeArgs returns the first arguments of Charge. Those of each key follow, from AppendKeyCharge.
func ChargeArgs(limits []limit.Limit, now state.At, move state.Move, keys int) []any {
	args := make([]any, 0, 6+3*len(limits)+keys*(2+3*len(limits)))
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
