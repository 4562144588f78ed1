package featureflag

import "time"

// SetRound makes a subscription notice silence sooner.
func SetRound(s Source, round time.Duration) { s.(*redisHash).round = round }
