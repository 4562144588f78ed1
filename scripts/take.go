package scripts

import (
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TakeArgs are the arguments of Take. A cost of 0 only stores what the floor knows.
func TakeArgs(limits []limit.Limit, now state.At, cost int64, floor string, move state.Move) []any {
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

// FloorText encodes a floor; empty if there is none, or if it is over.
func FloorText(floor *state.State, nowMicros int64) string {
	if floor == nil || floor.Until() <= nowMicros {
		return ""
	}
	b, _ := floor.AppendText(make([]byte, 0, 256))
	return string(b)
}

// ParseTake decodes the reply of Take or TakeOne, or of Takes for one key. It reports a charge also where the reply can't be read.
func ParseTake(reply string) (charged bool, s state.State, err error) {
	if reply == "" {
		return true, s, state.ErrCorruptState
	}
	if reply[0] >= 'a' { // of TakeOne, which begins with the state
		s, err = state.ParseState(reply)
		return true, s, err
	}
	s, err = state.ParseState(reply[1:])
	if reply[0] != '0' && reply[0] != '1' {
		err = state.ErrCorruptState
	}
	return reply[0] != '0' || err != nil, s, err
}
