package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server that stores nothing on disk.
type server struct {
	addr   string
	client *redis.Client
	cmd    *exec.Cmd
}

func startServer(ctx context.Context) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := l.Close(); err != nil {
		return nil, err
	}
	s := &server{addr: addr, client: redis.NewClient(&redis.Options{Addr: addr})}
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	for range 100 {
		if err = s.client.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("redis-server: %w", err)
}

func (s *server) stop() {
	_ = s.client.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// spent is what the server has used up: calls of scripts, and processor time in microseconds.
type spent struct{ calls, micros float64 }

var (
	scriptCalls = regexp.MustCompile(`cmdstat_(?:evalsha|eval|fcall):calls=(\d+)`)
	cpuSeconds  = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)
)

func (s *server) spent(ctx context.Context) (sum spent, err error) {
	info, err := s.client.Info(ctx, "cpu", "commandstats").Result()
	if err != nil {
		return sum, err
	}
	for _, m := range scriptCalls.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.ParseFloat(m[1], 64)
		sum.calls += n
	}
	for _, m := range cpuSeconds.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.ParseFloat(m[1], 64)
		sum.micros += n * 1e6
	}
	return sum, nil
}
