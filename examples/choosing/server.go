package main

import (
	"context"

	"github.com/sluice-go/sluice/internal/redisserver"
)

// server is a redis-server of this program's own.
type server struct{ *redisserver.Server }

// spent is what the server has used up: calls of scripts, and processor time in microseconds.
type spent struct{ calls, micros float64 }

func (s *server) spent(ctx context.Context) (sum spent, err error) {
	info, err := s.Info(ctx, "cpu", "commandstats")
	if err != nil {
		return sum, err
	}
	seconds, err := info.CPUSeconds()
	if err != nil {
		return sum, err
	}
	calls, err := info.Calls()
	return spent{float64(calls["evalsha"] + calls["eval"]), seconds * 1e6}, err
}
