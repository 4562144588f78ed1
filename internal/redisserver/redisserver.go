// Package redisserver runs a redis-server for a program that measures, and reads what it has used. Tests have package testserver.
package redisserver

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

// Server is a redis-server of this program's own, with its data in a directory that goes with it.
type Server struct {
	Addr   string
	Admin  *redis.Client // for everything but the work that is measured
	cmd    *exec.Cmd
	exited chan struct{}
	dir    string
}

const startTimeout = 30 * time.Second

// Start starts one on a free port of the loopback interface. It needs redis-server on PATH.
func Start(ctx context.Context) (*Server, error) {
	var err error
	for range 5 { // the port is free when it is chosen, but another process may be faster
		var s *Server
		if s, err = try(ctx); err == nil || ctx.Err() != nil {
			return s, err
		}
	}
	return nil, err
}

func try(ctx context.Context) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().(*net.TCPAddr)
	listener.Close()
	dir, err := os.MkdirTemp("", "sluice-redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: addr.String(), dir: dir, exited: make(chan struct{})}
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
	s.Admin = redis.NewClient(&redis.Options{
		Addr: s.Addr, PoolSize: 1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	if err := s.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.exited:
			return errors.New("redis-server ended at once")
		default:
		}
		// Another server may have got the port, and answer.
		info, err := s.Info(ctx, "server")
		switch {
		case err == nil && info["process_id"] == strconv.Itoa(s.cmd.Process.Pid):
			return nil
		case err == nil:
			return fmt.Errorf("another server listens on %s", s.Addr)
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("redis-server doesn't answer after %v: %w", startTimeout, err)
		}
	}
}

// Stop kills this process and no other, and removes its data.
func (s *Server) Stop() error {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
	return errors.Join(s.Admin.Close(), os.RemoveAll(s.dir))
}
