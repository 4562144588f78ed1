package redisbackend

import "github.com/sluice-go/sluice/internal/redispipe"

// Waiting tells tests what redispipe.Waiting says.
func (r *Redis) Waiting() (queued, free, extra int) { return redispipe.Waiting(r.pipe) }

// InterruptAlways is redispipe.InterruptAlways for tests.
func (r *Redis) InterruptAlways() { redispipe.InterruptAlways(r.pipe) }
