package scripts

import (
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// planOne prepares single takes under one limit.
func (p *Plan) planOne(l *limit.Limit) {
	start := "^" + string(state.AppendID(nil, l))
	switch l.Algorithm {
	case limit.FixedWindow:
		p.one, p.oneArgs = &TakeOne, []any{start + `:(%d+),()%d+;$`}
	case limit.SlidingWindow:
		p.one = &TakeOne
		p.oneArgs = []any{start + `:(%d+),()(%d+),(%d+)()`, l.Precision.Milliseconds(), int64(l.Window / l.Precision)}
	case limit.Bucket:
		p.one, p.oneArgs = &TakeBucket, appendBucket([]any{start + `:(%d+)%.?(%d*),(%d+),(%d+);$`}, l, 1)
	}
}

// appendBucket appends the constant arguments of TakeBucket for a cost.
func appendBucket(args []any, l *limit.Limit, cost int64) []any {
	micros, fraction := l.Refill(cost)
	room, rest := l.Refill(l.Burst)
	room, rest = room-micros, rest-fraction
	if rest < 0 {
		room, rest = room-1, rest+l.Max
	}
	return append(args, micros, fraction, room, rest, l.Max)
}

// fitsOne reports whether the script for a single take is for this one.
func (p *Plan) fitsOne(nowMicros int64, take *KeyTake) bool {
	if take.Floor != "" {
		return false
	}
	return p.one == &TakeBucket || take.Cost == 1 && hasMillisDigits(nowMicros)
}

// hasMillisDigits reports whether now, and the reset of each window that begins now, have 13 digits as Unix milliseconds: from
// 2001 to
// 2276. TakeOne compares them as text.
func hasMillisDigits(nowMicros int64) bool {
	const least, most = 1e15, 1e16 - int64(limit.MaxWindow/time.Microsecond)
	return least <= nowMicros && nowMicros < most
}

// appendOne appends the key and the arguments of TakeOne or TakeBucket.
func (p *Plan) appendOne(to *Args, nowMicros int64, take *KeyTake) {
	l := &p.Limits[0]
	to.List = append(to.List, &take.Key, p.oneArgs[0], &to.text)
	if p.one == &TakeBucket {
		to.text = strconv.AppendInt(to.text[:0], nowMicros, 10)
		if take.Cost != 1 {
			to.List = appendBucket(to.List, l, take.Cost)
			return
		}
	} else {
		to.text = strconv.AppendInt(to.text[:0], nowMicros/1000, 10)
		to.text = strconv.AppendInt(to.text, state.End(l, state.At{Micros: nowMicros, Phase: take.Phase}), 10)
		to.text = strconv.AppendInt(to.text, l.Max, 10)
	}
	to.List = append(to.List, p.oneArgs[1:]...)
}
