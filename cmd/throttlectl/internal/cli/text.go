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

// Timestamp is a time that is printed in UTC with milliseconds, so that servers and logs can be compared.
type Timestamp time.Time

func (t Timestamp) IsZero() bool { return time.Time(t).IsZero() }

func (t Timestamp) String() string {
	if t.IsZero() {
		return "-"
	}
	return time.Time(t).UTC().Format(TimeLayout)
}

func (t Timestamp) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// TimeLayout is RFC 3339 with all three digits of milliseconds, so that lines stay aligned.
const TimeLayout = "2006-01-02T15:04:05.000Z07:00"

// Percent is a share of 1 as it is printed.
func Percent(part float64) string { return fmt.Sprintf("%.2f%%", 100*part) }

// Cell makes text of servers and applications harmless to a terminal, and "-" of none.
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

// YesNo is a bool as it is printed.
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

// Limits is limits as they are written on the command line.
func Limits(all []limit.Limit) string {
	var texts []string
	for _, l := range all {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, " ")
}
