package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisserver"
)

// server is what the network rows are measured on.
type server struct{ *redisserver.Server }

func startServer(ctx context.Context) (*server, error) {
	s, err := redisserver.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &server{s}, nil
}

// flush removes every key.
func (s *server) flush(ctx context.Context) error { return s.Admin.FlushAll(ctx).Err() }

// bytes is the memory of all keys, with the names and the entries in the table of keys, but not in that of expiries.
func (s *server) bytes(ctx context.Context) (int64, error) {
	keys, err := s.Admin.Keys(ctx, "*").Result()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, key := range keys {
		n, err := s.Admin.MemoryUsage(ctx, key, 0).Result()
		if errors.Is(err, redis.Nil) { // gone meanwhile
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
