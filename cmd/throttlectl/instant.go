package main

import "time"

// instant is a time as it is printed everywhere: in UTC, with milliseconds, so that servers and logs can be compared.
type instant time.Time

func (i instant) IsZero() bool { return time.Time(i).IsZero() }

func (i instant) String() string {
	if i.IsZero() {
		return "-"
	}
	return time.Time(i).UTC().Format(timeLayout)
}

// MarshalText makes it the same in JSON.
func (i instant) MarshalText() ([]byte, error) { return []byte(i.String()), nil }
