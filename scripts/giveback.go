package scripts

import (
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// RefundArgs returns the arguments of Refund. It omits windows that are over.
func RefundArgs(now state.At, r *state.Receipt, amount int64, move state.Move) []any {
	p := r.Policy()
	args := moveArgs(make([]any, 0, 4+7*len(p.Limits)), now, move)
	for i := range p.Limits {
		l := &p.Limits[i]
		end, position, fraction := r.Charge(i)
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

// everything is the amount of a Reset that voids the receipts of what it gives back.
const everything = -1

// ResetArgs returns the arguments of Reset for everything.
func ResetArgs(now state.At, p *limit.Policy, move state.Move) []any {
	return resetArgs(now, p, everything, move)
}

// GrantArgs returns the arguments of Reset for up to extra.
func GrantArgs(now state.At, p *limit.Policy, extra int64, move state.Move) []any {
	return resetArgs(now, p, extra, move)
}

func resetArgs(now state.At, p *limit.Policy, amount int64, move state.Move) []any {
	args := moveArgs(make([]any, 0, 4+4*len(p.Limits)), now, move)
	for i := range p.Limits {
		l := &p.Limits[i]
		args = append(args, state.AppendID(nil, l))
		switch {
		case l.Algorithm != limit.Bucket:
			args = append(args, amount)
		case amount == everything:
			args = append(args, everything, 0, l.Max)
		default:
			micros, fraction := l.Refill(min(amount, l.Burst))
			args = append(args, micros, fraction, l.Max)
		}
	}
	return args
}

// moveArgs appends the first arguments of Refund and Reset.
func moveArgs(args []any, now state.At, move state.Move) []any {
	args = append(args, now.Micros)
	if move.Version > 0 {
		args = append(args, move.Mover.FenceID(), move.Version, int(move.Step))
	}
	return args
}

// SealArgs returns the arguments of Seal.
func SealArgs(now state.At, move state.Move) []any {
	return []any{now.Micros, move.Mover.FenceID(), move.Version, move.End(now)}
}
