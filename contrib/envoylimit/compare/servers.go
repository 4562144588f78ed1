package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisserver"
)

// child is a process that runs.
type child struct {
	cmd  *exec.Cmd
	addr string
}

// stop ends the process and waits for it.
func (c *child) stop() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// database is a redis-server of this program's own.
type database struct{ *redisserver.Server }

// usage is what the server has used so far: commands that clients sent, and processor time.
func (d *database) usage(ctx context.Context) (commands int64, cpu time.Duration, err error) {
	info, err := d.Info(ctx, "cpu", "commandstats")
	if err != nil {
		return 0, 0, err
	}
	seconds, err := info.CPUSeconds()
	if err != nil {
		return 0, 0, err
	}
	calls, err := info.Calls()
	if err != nil {
		return 0, 0, err
	}
	if calls["evalsha"] > 0 { // then these are called by scripts, but for a few peeks
		for _, inner := range []string{"get", "set", "pexpire", "mget"} {
			delete(calls, inner)
		}
	}
	for _, n := range calls {
		commands += n
	}
	return commands, time.Duration(seconds * float64(time.Second)), nil
}

// startService starts a contender with counts in d.
func startService(ctx context.Context, c *contender, d *database, dir string) (*child, error) {
	root := filepath.Join(dir, "runtime-"+strconv.Itoa(int(time.Now().UnixNano())))
	config := filepath.Join(root, "limits", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(c.limits), 0o600); err != nil {
		return nil, err
	}
	var ports []string
	var addr string
	for _, name := range []string{"PORT", "DEBUG_PORT", "GRPC_PORT"} {
		at, err := free()
		if err != nil {
			return nil, err
		}
		ports, addr = append(ports, name+"="+port(at)), at // the last is that of gRPC
	}
	cmd := exec.CommandContext(ctx, c.file)
	cmd.Env = append(append(os.Environ(), ports...), "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "USE_STATSD=false",
		"DISABLE_STATS=true", "LOG_LEVEL=error", "RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=limits", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+d.Addr, "REDIS_TIMEOUT=10s",
		"CACHE_KEY_PREFIX="+port(addr)+":") // all contenders count in one database
	cmd.Env = append(cmd.Env, c.env...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &child{cmd, addr}
	if err := await(ctx, func() error {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// cpu is the processor time that a process has used.
func (c *child) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name of the command may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc: %q", text)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	const tick = 10 * time.Millisecond // sysconf(_SC_CLK_TCK) is 100 on Linux
	return time.Duration(user+system) * tick, err
}

func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

func await(ctx context.Context, ok func() error) error {
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := ok()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
