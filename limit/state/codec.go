package state

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/durationtext"
	"github.com/sluice-go/sluice/limit"
)

// ErrCorruptState says that a stored value is not a state in this package's encoding.
var ErrCorruptState = errors.New("sluice: corrupt state")

// A state is stored as text, an entry for each limit, in any order:
//
//	f1m:1795225200123,57;                  fixed: identity, reset in ms, charged
//	f1m:1795225200123,57-3;                the same with 3 of the 57 given back
//	f1m:1795225200123,57-53-50;            the first 50 by a reset
//	s1h~1m:1795226400000,70,57-3,12,0,4;   sliding: end in ms, used in all, then the counts of each sub-bucket,
//	                                       newest first
//	b1s:1795225200123456.1,700000,100000;  bucket: peak in us and 1/rate us, how many us before it the generation began,
//	                                       and how many before it the latest charge was made
//	b1s:1795225200123456.1,700000,100000,1795225202123456.1,2000000.2;
//	                                       once there is credit: that, arrival time and credit; else the peak is the
//	                                       arrival time
//	m:1795225200123,7,6;                   fence of a handover: end in ms, version adopted, version sealed
//
// The identity is a letter (f fixed, a aligned, g staggered, s sliding, b bucket), the window, and ~ and the
// precision; a fence has the letter only. It can't be mistaken for a part of a body, which holds digits and ",-."
// only. The first number is the end of the entry. A state has at most maxText bytes and maxEntries entries, and no number
// has more than 16 digits; readers check that first. Text was chosen by measurement against a hash and a packed string; see
// package scripts.

// Bounds far above any state: a larger value was not written by Sluice, and parsing it would block a server. state.lua has
// the same bounds.
const (
	maxText    = 128 << 10
	maxEntries = 256
)

// AppendText appends the encoding of s to b.
func (s *State) AppendText(b []byte) ([]byte, error) {
	for i := range s.entries {
		if e := &s.entries[i]; e.end != 0 {
			b = e.appendText(b)
		}
	}
	return b, nil
}

// String is the encoding of s.
func (s *State) String() string {
	b, _ := s.AppendText(nil)
	return string(b)
}

func (e *entry) appendText(b []byte) []byte {
	b = append(e.id.appendText(b), ':')
	switch e.id.algorithm {
	case limit.SlidingWindow:
		b = append(strconv.AppendInt(b, e.end/1000, 10), ',')
		b = strconv.AppendInt(b, e.used, 10)
		for _, c := range e.subs {
			b = c.appendText(append(b, ','))
		}
	case limit.Bucket:
		peak := e.peak()
		b = append(peak.appendText(b), ',')
		b = append(strconv.AppendInt(b, peak.micros-e.began, 10), ',')
		b = strconv.AppendInt(b, peak.micros-e.lastCharge, 10)
		if e.credit != (span{}) {
			b = e.arrival.appendText(append(b, ','))
			b = e.credit.appendText(append(b, ','))
		}
	case fenced:
		b = append(strconv.AppendInt(b, e.end/1000, 10), ',')
		b = append(strconv.AppendInt(b, e.count.charged, 10), ',')
		b = strconv.AppendInt(b, e.count.refunded, 10)
	default:
		b = append(strconv.AppendInt(b, e.end/1000, 10), ',')
		b = e.count.appendText(b)
	}
	return append(b, ';')
}

func (id identity) appendText(b []byte) []byte {
	if b = append(b, id.letter()); id.algorithm == fenced {
		return b
	}
	b = durationtext.Append(b, id.window)
	if id.algorithm == limit.SlidingWindow {
		b = durationtext.Append(append(b, '~'), id.precision())
	}
	return b
}

func (id identity) letter() byte {
	switch {
	case id.algorithm == limit.SlidingWindow:
		return 's'
	case id.algorithm == limit.Bucket:
		return 'b'
	case id.algorithm == fenced && id.alignment == limit.Alignment(Topology):
		return 't'
	case id.algorithm == fenced:
		return 'm'
	case id.alignment == limit.ClockAligned:
		return 'a'
	case id.alignment == limit.KeyStaggered:
		return 'g'
	}
	return 'f'
}

func (c count) appendText(b []byte) []byte {
	b = strconv.AppendInt(b, c.charged, 10)
	if c.refunded != 0 {
		b = strconv.AppendInt(append(b, '-'), c.refunded, 10)
	}
	if c.void != 0 {
		b = strconv.AppendInt(append(b, '-'), c.void, 10)
	}
	return b
}

func (s span) appendText(b []byte) []byte {
	b = strconv.AppendInt(b, s.micros, 10)
	if s.frac != 0 {
		b = strconv.AppendInt(append(b, '.'), s.frac, 10)
	}
	return b
}

// ParseState reads what [State.AppendText] wrote; anything else is an [ErrCorruptState].
func ParseState[T string | []byte](text T) (State, error) {
	var s State
	r := reader[T]{text: text, ok: len(text) <= maxText}
	for r.ok && r.i < len(text) {
		e := r.entry()
		r.ok = r.ok && len(s.entries) < maxEntries
		if s.entries == nil {
			s.entries = make([]entry, 0, 1+min(r.left(';', 0), limit.MaxLimits))
		} else if s.find(e.id) != nil {
			r.ok = false
		}
		s.entries = append(s.entries, e)
	}
	if !r.ok {
		return State{}, ErrCorruptState
	}
	return s, nil
}

// reader reads one encoding from left to right; ok turns false at the first thing out of place.
type reader[T string | []byte] struct {
	text T
	i    int
	ok   bool
}

// next reports whether c comes next, and consumes it.
func (r *reader[T]) next(c byte) bool {
	if r.i < len(r.text) && r.text[r.i] == c {
		r.i++
		return true
	}
	return false
}

func (r *reader[T]) expect(c byte) { r.ok = r.next(c) && r.ok }

// left counts the occurrences of c before stop, or the end.
func (r *reader[T]) left(c, stop byte) int {
	n := 0
	for i := r.i; i < len(r.text) && r.text[i] != stop; i++ {
		if r.text[i] == c {
			n++
		}
	}
	return n
}

// number reads a whole number of at most MaxCount in its shortest form.
func (r *reader[T]) number() int64 {
	start, n := r.i, int64(0)
	for r.i < len(r.text) && r.text[r.i]-'0' <= 9 {
		n = n*10 + int64(r.text[r.i]-'0')
		r.i++
		if n > limit.MaxCount {
			r.ok = false
			return 0
		}
	}
	if r.i == start || r.text[start] == '0' && r.i > start+1 {
		r.ok = false
	}
	return n
}

func (r *reader[T]) duration() time.Duration {
	n := r.number()
	for _, u := range durationtext.Units {
		if end := r.i + len(u.Suffix); end <= len(r.text) && string(r.text[r.i:end]) == u.Suffix &&
			(end == len(r.text) || r.text[end] == ':' || r.text[end] == '~') {
			r.i = end
			if n < 1 || n > int64(limit.MaxWindow/u.Size) {
				break
			}
			return time.Duration(n) * u.Size
		}
	}
	r.ok = false
	return 0
}

func (r *reader[T]) identity() identity {
	id := identity{algorithm: limit.FixedWindow}
	switch {
	case r.next('f'):
	case r.next('a'):
		id.alignment = limit.ClockAligned
	case r.next('g'):
		id.alignment = limit.KeyStaggered
	case r.next('s'):
		id.algorithm = limit.SlidingWindow
	case r.next('b'):
		id.algorithm = limit.Bucket
	case r.next('m'):
		return fenceOf(Migration)
	case r.next('t'):
		return fenceOf(Topology)
	default:
		r.ok = false
	}
	start := r.i
	id.window = r.duration()
	if id.algorithm == limit.SlidingWindow {
		r.expect('~')
		precision := r.duration()
		if r.ok = r.ok && precision > 0 && id.window/precision <= limit.MaxSubBuckets; r.ok {
			id.parts = uint8(id.window / precision)
		}
	}
	if r.ok { // one spelling for each identity, because scripts compare it as text
		canonical := id.appendText(make([]byte, 0, 32))
		r.ok = string(canonical[1:]) == string(r.text[start:r.i]) && id.valid()
	}
	return id
}

// valid reports whether some valid limit has this identity.
func (id identity) valid() bool {
	l := limit.Limit{Algorithm: id.algorithm, Alignment: id.alignment, Window: id.window, Precision: id.precision(), Max: 1}
	if id.algorithm == limit.Bucket {
		l.Max, l.Burst = maxRate, 1
	}
	return l.Validate() == nil
}

func (r *reader[T]) count() count {
	c := count{charged: r.number()}
	if r.next('-') {
		c.refunded = r.number()
		r.ok = r.ok && c.refunded > 0
		if r.next('-') {
			c.void = r.number()
			r.ok = r.ok && c.void > 0
		}
	}
	r.ok = r.ok && c.void <= c.refunded && c.refunded <= c.charged
	return c
}

// end reads the end of a window in milliseconds and returns it in microseconds.
func (r *reader[T]) end() int64 {
	n := r.number()
	r.ok = r.ok && n <= limit.MaxCount/1000
	return n * 1000
}

func (r *reader[T]) span() span {
	s := span{micros: r.number()}
	if r.next('.') {
		s.frac = r.number()
		r.ok = r.ok && s.frac > 0 && s.frac < maxRate
	}
	return s
}

func (r *reader[T]) entry() entry {
	e := entry{id: r.identity()}
	r.expect(':')
	switch {
	case !r.ok:
	case e.id.algorithm == limit.Bucket:
		peak := r.span()
		e.setPeak(peak)
		e.arrival = peak
		r.expect(',')
		e.began = peak.micros - r.number()
		r.expect(',')
		e.lastCharge = peak.micros - r.number()
		r.ok = r.ok && 0 <= e.began && e.began <= e.lastCharge && e.lastCharge < e.end
		if r.next(',') {
			e.arrival = r.span()
			r.expect(',')
			e.credit = r.span()
			r.ok = r.ok && e.credit != span{} && e.credit.micros < maxCredit && !e.arrival.less(e.credit) && !e.arrival.less(peak)
		}
	case e.id.algorithm == limit.SlidingWindow:
		e.end = r.end()
		r.expect(',')
		e.used = r.number()
		used := int64(0)
		if n := r.left(',', ';'); n <= limit.MaxSubBuckets {
			e.subs = make([]count, 0, n)
		}
		for r.ok && r.next(',') {
			c := r.count()
			e.subs = append(e.subs, c)
			used += c.used()
		}
		n := int64(len(e.subs))
		r.ok = r.ok && n > 0 && n <= e.id.subBuckets() && used == e.used &&
			e.end%e.id.precisionMicros() == 0 && (n == 1 || e.subs[n-1].charged > 0)
	case e.id.algorithm == fenced:
		e.end = r.end()
		r.expect(',')
		e.count.charged = r.number()
		r.expect(',')
		e.count.refunded = r.number()
		r.ok = r.ok && e.count != count{}
	default:
		e.end = r.end()
		r.expect(',')
		e.count = r.count()
	}
	r.ok = r.ok && e.end > 0
	r.expect(';')
	return e
}
