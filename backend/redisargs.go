package backend

import (
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// The arguments of the scripts, in the order that their headers give.

func takeArgs(limits []limit.Limit, now state.At, cost int64, floor string, move state.Move) []any {
	args := make([]any, 0, 7+6*len(limits))
	args = append(args, now.Micros, cost, floor)
	if move.Version > 0 {
		args = append(args, move.Mover.FenceID(), move.Version, int(move.Step), move.End(now))
	}
	for i := range limits {
		l := &limits[i]
		args = append(args, state.AppendID(nil, l))
		switch l.Algorithm {
		case limit.SlidingWindow:
			args = append(args, l.Max, state.End(l, now), l.Precision.Milliseconds(), int64(l.Window/l.Precision))
		case limit.Bucket:
			micros, fraction := l.Refill(cost)
			burstMicros, burstFraction := l.Refill(l.Burst)
			args = append(args, micros, fraction, burstMicros, burstFraction, l.Max)
		default:
			args = append(args, l.Max, state.End(l, now))
		}
	}
	return args
}

// floorText is what a floor still tells at a moment, as text.
func floorText(floor *state.State, nowMicros int64) string {
	if floor == nil || floor.Until() <= nowMicros {
		return ""
	}
	b, _ := floor.AppendText(make([]byte, 0, 256))
	return string(b)
}

func refundArgs(now state.At, r *state.Receipt, amount int64, move state.Move) []any {
	p := r.Policy()
	args := make([]any, 0, 4+7*len(p.Limits))
	args = append(args, now.Micros)
	if move.Version > 0 {
		args = append(args, move.Mover.FenceID(), move.Version, int(move.Step))
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		end, position, fraction := r.Mark(i)
		if now.Micros >= end {
			continue
		}
		args = append(args, state.AppendID(nil, l))
		switch l.Algorithm {
		case limit.SlidingWindow:
			args = append(args, amount, end/1000, position, l.Precision.Milliseconds())
		case limit.Bucket:
			micros, rest := l.Refill(amount)
			args = append(args, micros, rest, position, fraction, l.Max, end)
		default:
			args = append(args, amount, end/1000, position)
		}
	}
	return args
}

func resetArgs(p *limit.Policy, now state.At, move state.Move) []any {
	args := make([]any, 0, 4+2*len(p.Limits))
	args = append(args, now.Micros)
	if move.Version > 0 {
		args = append(args, move.Mover.FenceID(), move.Version, int(move.Step))
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		args = append(args, state.AppendID(nil, l))
		if l.Algorithm == limit.Bucket {
			args = append(args, l.Max)
		}
	}
	return args
}
