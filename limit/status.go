package limit

import "time"

// Status is what one limit says.
type Status struct {
	Limit      Limit
	Remaining  int64         // what is left after the request; never negative
	ResetAt    time.Time     // when the full quota is back
	RetryAfter time.Duration // how long this limit alone makes the request wait; 0 if it admits it
}
