package cli

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/sluice-go/sluice/internal/picture"
	"github.com/sluice-go/sluice/limit"
)

// Duration is a duration that is text in JSON, too.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Timestamp is a time as it is printed everywhere: in UTC, with milliseconds, so that servers and logs can be compared.
type Timestamp time.Time

func (t Timestamp) IsZero() bool { return time.Time(t).IsZero() }

func (t Timestamp) String() string {
	if t.IsZero() {
		return "-"
	}
	return time.Time(t).UTC().Format(TimeLayout)
}

// MarshalText makes it the same in JSON.
func (t Timestamp) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// TimeLayout is RFC 3339 with milliseconds, all of them, so that lines stay aligned.
const TimeLayout = "2006-01-02T15:04:05.000Z07:00"

func Percent(part float64) string { return fmt.Sprintf("%.2f%%", 100*part) }

// Cell is text of foreign origin, fit for a table and harmless to a terminal.
func Cell(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// SecondsText is seconds as a duration, to the millisecond.
func SecondsText(seconds float64) string {
	return picture.ShortDuration(time.Duration(math.Round(seconds*1e3)) * time.Millisecond)
}

func Limits(all []limit.Limit) string {
	var texts []string
	for _, l := range all {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, " ")
}
