package traffic

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

const ShapeHelp = `  steady:5/s               a request every 200 ms
  bursts:50@10s            50 requests at once, every 10 s
  poisson:8/s              at random, 8 a second in the mean
  spike:5/s,200/s@2m+10s   at random, 5 a second, but 200 a second from minute 2 on for 10 s
  ramp:1/s,50/s            at random, from 1 to 50 a second over the whole time
  wave:2/s,20/s@5m         at random, between 2 and 20 a second, up and down in 5 min

Rates are per s, m, h or any duration: 300/m, 0.5/s, 10/250ms.`

// Shape is when requests come.
type Shape struct {
	Text string

	most float64 // the highest rate, in requests a second

	// Shapes with bursts; the steady shape has bursts of one.
	burst int
	every time.Duration

	// Random shapes: the requests a second at a time of the whole, both in seconds.
	rate func(at, lasts float64) float64
}

const (
	minRate  = 1e-6 // requests a second
	maxRate  = 1e6
	maxBurst = 1e6
)

func ParseShape(text string) (Shape, error) {
	kind, rest, _ := strings.Cut(text, ":")
	s := Shape{Text: text}
	var err error
	switch kind {
	case "steady":
		s.most, err = ParseRate(rest)
		s.burst, s.every = 1, time.Duration(float64(time.Second)/s.most)
	case "poisson":
		s.most, err = ParseRate(rest)
		most := s.most
		s.rate = func(float64, float64) float64 { return most }
	case "bursts":
		err = s.parseBursts(rest)
	case "spike", "ramp", "wave":
		err = s.parseChange(kind, rest)
	default:
		err = errors.New("must be steady:, bursts:, poisson:, spike:, ramp: or wave: and what follows it")
	}
	if err == nil && s.most == 0 {
		err = errors.New("must make requests: the rate is 0")
	}
	if err != nil {
		return Shape{}, fmt.Errorf("--shape = %q: %w", text, err)
	}
	return s, nil
}

// parseBursts reads 50@10s.
func (s *Shape) parseBursts(text string) error {
	n, every, ok := strings.Cut(text, "@")
	if !ok {
		return errors.New("must look like bursts:50@10s")
	}
	var err error
	if s.burst, err = strconv.Atoi(n); err != nil || s.burst < 1 || s.burst > maxBurst {
		return fmt.Errorf("the burst must be a whole number from 1 to %d", int(maxBurst))
	}
	s.every, err = parseSpan(every)
	s.most = float64(s.burst) / s.every.Seconds()
	return err
}

// parseChange reads two rates, and where they change: LOW,HIGH, LOW,HIGH@PERIOD or LOW,HIGH@AT+LENGTH.
func (s *Shape) parseChange(kind, text string) error {
	rates, when, timed := strings.Cut(text, "@")
	first, second, two := strings.Cut(rates, ",")
	if !two || timed != (kind != "ramp") {
		return errors.New("must look like spike:5/s,200/s@2m+10s, ramp:1/s,50/s or wave:2/s,20/s@5m")
	}
	low, err := ParseRate(first)
	if err != nil {
		return err
	}
	high, err := ParseRate(second)
	if err != nil {
		return err
	}
	s.most = max(low, high)
	switch kind {
	case "ramp":
		s.rate = func(at, lasts float64) float64 { return low + (high-low)*(at/lasts) }
	case "wave":
		period, err := parseSpan(when)
		if err != nil {
			return err
		}
		s.rate = func(at, _ float64) float64 {
			return low + (high-low)*(1-math.Cos(2*math.Pi*at/period.Seconds()))/2
		}
	default:
		from, length, ok := strings.Cut(when, "+")
		begin, err := time.ParseDuration(from)
		if !ok || err != nil || begin < 0 {
			return errors.New("the part after @ must be when the spike begins, and how long it is: 2m+10s")
		}
		lasts, err := parseSpan(length)
		if err != nil {
			return err
		}
		s.rate = func(at, _ float64) float64 {
			if at >= begin.Seconds() && at < begin.Seconds()+lasts.Seconds() {
				return high
			}
			return low
		}
	}
	return nil
}

// ParseRate reads 5/s, 300/m or 10/250ms, as requests a second.
func ParseRate(text string) (float64, error) {
	count, per, ok := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(count, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("rate %q: must look like 5/s, 300/m or 10/250ms", text)
	}
	if per == "s" || per == "m" || per == "h" {
		per = "1" + per
	}
	span, err := parseSpan(per)
	if err != nil {
		return 0, fmt.Errorf("rate %q: %w", text, err)
	}
	if n /= span.Seconds(); n != 0 && !(n >= minRate && n <= maxRate) { // NaN, too
		return 0, fmt.Errorf("rate %q: must be 0, or from %f to %d a second", text, minRate, int(maxRate))
	}
	return n, nil
}

func parseSpan(text string) (time.Duration, error) {
	span, err := time.ParseDuration(text)
	if err != nil || span < time.Microsecond {
		return 0, fmt.Errorf("%q must be a duration of at least 1us", text)
	}
	return span, nil
}

// moments is when requests come.
func (s *Shape) moments(random *rand.Rand, lasts time.Duration) iter.Seq[time.Duration] {
	if s.rate != nil {
		return s.chance(random, lasts)
	}
	return func(yield func(time.Duration) bool) {
		for at := time.Duration(0); at < lasts; at += s.every {
			for range s.burst {
				if !yield(at) {
					return
				}
			}
		}
	}
}

// chance draws the moments of a Poisson process whose rate changes, by thinning (Lewis and Shedler, "Simulation of
// nonhomogeneous Poisson processes by thinning", 1979): of the requests of a process that always has the largest rate,
// as many are dropped as the present rate is less.
func (s *Shape) chance(random *rand.Rand, lasts time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		end := lasts.Seconds()
		for at := 0.0; ; {
			at += -math.Log(1-random.Float64()) / s.most
			moment := time.Duration(at * float64(time.Second))
			if at >= end || moment >= lasts {
				return
			}
			if random.Float64()*s.most < s.rate(at, end) && !yield(moment) {
				return
			}
		}
	}
}
