//go:build unix

package redisserver

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
)

func TestServerGoes(t *testing.T) {
	s, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := s.cmd.Process.Pid
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", pid, err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", s.dir, err)
	}
}

func TestServerNeedsNoTimeToBeGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := Start(ctx); err == nil {
		_ = s.Stop()
		t.Error("a server was started under a context that is over")
	}
}

func TestInfo(t *testing.T) {
	info := parseInfo("# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:0.250000\r\n\r\n# Commandstats\r\n" +
		"cmdstat_evalsha:calls=10,usec=80,usec_per_call=8.00,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_get:calls=5,usec=8,usec_per_call=1.60,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_info:calls=3,usec=8,usec_per_call=1.60,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_config|resetstat:calls=1,usec=8,usec_per_call=1.60,rejected_calls=0,failed_calls=0\r\n")
	if got, err := info.CPUSeconds(); got != 1.75 || err != nil {
		t.Errorf("CPU seconds are %v, %v", got, err)
	}
	if got, err := info.Calls(); len(got) != 2 || got["evalsha"] != 10 || got["get"] != 5 || err != nil {
		t.Errorf("calls are %v, %v", got, err)
	}
	if _, err := parseInfo("used_cpu_sys:1\r\n").CPUSeconds(); err == nil {
		t.Error("half of the CPU seconds is enough")
	}
	if _, err := parseInfo("cmdstat_get:calls=x,\r\n").Calls(); err == nil {
		t.Error("x is a number of calls")
	}
}
