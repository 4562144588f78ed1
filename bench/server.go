package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A server is a redis-server of this program's own, with its data in a directory that goes with it.
type server struct {
	addr   string
	admin  *redis.Client // for everything but the work that is measured
	cmd    *exec.Cmd
	exited chan struct{}
	dir    string
}

const startTimeout = 30 * time.Second

// startServer starts one on a free port of the loopback interface.
func startServer(ctx context.Context) (*server, error) {
	var err error
	for range 5 { // the port is free when it is chosen, but another process may be faster
		var s *server
		if s, err = tryServer(ctx); err == nil || ctx.Err() != nil {
			return s, err
		}
	}
	return nil, err
}

func tryServer(ctx context.Context) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().(*net.TCPAddr)
	listener.Close()
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{addr: addr.String(), dir: dir, exited: make(chan struct{})}
	s.cmd = exec.Command("redis-server", "--port", strconv.Itoa(addr.Port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", dir, "--loglevel", "warning")
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("this needs redis-server on PATH (Debian's package redis-server): %w", err),
			os.RemoveAll(dir))
	}
	go func() {
		_ = s.cmd.Wait() // it is killed
		close(s.exited)
	}()
	s.admin = redis.NewClient(&redis.Options{
		Addr: s.addr, PoolSize: 1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	if err := s.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) awaitReady(ctx context.Context) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.exited:
			return errors.New("redis-server ended at once")
		default:
		}
		// Another server may have got the port, and answer.
		info, err := s.info(ctx, "server")
		switch {
		case err == nil && info["process_id"] == strconv.Itoa(s.cmd.Process.Pid):
			return nil
		case err == nil:
			return fmt.Errorf("another server listens on %s", s.addr)
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("redis-server doesn't answer after %v: %w", startTimeout, err)
		}
	}
}

// stop kills this process and no other, and removes its data.
func (s *server) stop() error {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
	return errors.Join(s.admin.Close(), os.RemoveAll(s.dir))
}

// flush removes every key.
func (s *server) flush(ctx context.Context) error { return s.admin.FlushAll(ctx).Err() }

// bytes is the memory of all keys, with the names and the entries in the table of keys, but not in that of expiries.
func (s *server) bytes(ctx context.Context) (int64, error) {
	keys, err := s.admin.Keys(ctx, "*").Result()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, key := range keys {
		n, err := s.admin.MemoryUsage(ctx, key, 0).Result()
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
