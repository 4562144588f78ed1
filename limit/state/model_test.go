package state_test

import (
	"math/big"
	"strconv"
	"strings"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Models that are slow and obvious, to hold the algebra to.

// model decides for one limit the slow and obvious way.
type model interface {
	admits(now state.At, cost int64) bool
	charge(now state.At, cost int64)
}

func newModel(l limit.Limit) model {
	switch l.Algorithm {
	case limit.SlidingWindow:
		return &slidingModel{limit: l, used: map[int64]int64{}}
	case limit.Bucket:
		return &bucketModel{limit: l, full: new(big.Rat)}
	}
	return &fixedModel{limit: l}
}

// fixedModel counts in the running window.
type fixedModel struct {
	limit limit.Limit
	end   int64 // microseconds
	used  int64
}

func (m *fixedModel) admits(now state.At, cost int64) bool {
	return now.Micros >= m.end && cost <= m.limit.Max || m.used+cost <= m.limit.Max
}

func (m *fixedModel) charge(now state.At, cost int64) {
	if now.Micros >= m.end {
		window := m.limit.Window.Microseconds()
		m.used, m.end = 0, now.Micros/1000*1000+window
		if m.limit.Alignment != limit.FirstRequest {
			shift := int64(0)
			if m.limit.Alignment == limit.KeyStaggered {
				shift = int64(now.Phase%uint64(window/1000)) * 1000
			}
			for m.end = shift; m.end <= now.Micros; {
				m.end += max(1, (now.Micros-m.end)/window) * window
			}
		}
	}
	m.used += cost
}

// slidingModel keeps every sub-bucket that ever was.
type slidingModel struct {
	limit  limit.Limit
	newest int64
	used   map[int64]int64
}

func (m *slidingModel) index(now state.At) int64 {
	return max(m.newest, now.Micros/m.limit.Precision.Microseconds())
}

func (m *slidingModel) sum(now state.At) (sum int64) {
	newest := m.index(now)
	for i := range int64(m.limit.Window / m.limit.Precision) {
		sum += m.used[newest-i]
	}
	return sum
}

func (m *slidingModel) admits(now state.At, cost int64) bool { return m.sum(now)+cost <= m.limit.Max }

func (m *slidingModel) charge(now state.At, cost int64) {
	m.newest = m.index(now)
	m.used[m.newest] += cost
}

// bucketModel is the generic cell rate algorithm of the textbooks, in rational numbers.
type bucketModel struct {
	limit limit.Limit
	full  *big.Rat // the theoretical arrival time, in microseconds
}

// refill is the time in which cost tokens come back.
func refill(l *limit.Limit, cost int64) *big.Rat {
	r := big.NewRat(l.Window.Microseconds(), l.Max)
	return r.Mul(r, new(big.Rat).SetInt64(cost))
}

func (m *bucketModel) next(now state.At, cost int64) *big.Rat {
	next := new(big.Rat).SetInt64(now.Micros)
	if next.Cmp(m.full) < 0 {
		next.Set(m.full)
	}
	return next.Add(next, refill(&m.limit, cost))
}

func (m *bucketModel) admits(now state.At, cost int64) bool {
	earliest := m.next(now, cost)
	earliest.Sub(earliest, refill(&m.limit, m.limit.Burst))
	return earliest.Cmp(new(big.Rat).SetInt64(now.Micros)) <= 0
}

func (m *bucketModel) charge(now state.At, cost int64) { m.full = m.next(now, cost) }

// bucketOf reads arrival time and credit, in microseconds, from the encoding of a state whose only bucket is l's.
func bucketOf(t rapid.TB, s *state.State, l *limit.Limit) (arrival, credit *big.Rat) {
	t.Helper()
	arrival, credit = new(big.Rat), new(big.Rat)
	for entry := range strings.SplitSeq(s.String(), ";") {
		if id, body, _ := strings.Cut(entry, ":"); id == string(state.AppendID(nil, l)) {
			fields := strings.Split(body, ",")
			if len(fields) == 5 {
				return spanOf(t, fields[3], l.Max), spanOf(t, fields[4], l.Max)
			}
			return spanOf(t, fields[0], l.Max), credit
		}
	}
	return arrival, credit
}

func spanOf(t rapid.TB, text string, rate int64) *big.Rat {
	t.Helper()
	if text == "" {
		return new(big.Rat)
	}
	whole, fraction, _ := strings.Cut(text, ".")
	micros, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	r := new(big.Rat).SetInt64(micros)
	if fraction != "" {
		n, err := strconv.ParseInt(fraction, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		r.Add(r, big.NewRat(n, rate))
	}
	return r
}
