//go:build unix

package testserver_test

import (
	"io"
	"net"
	"testing"

	"github.com/sluice-go/sluice/internal/testserver"
)

// serveLine accepts connections and answers the first bytes of each with reply; where it is empty it closes at once, as
// Docker's proxy does before the server behind it listens.
func serveLine(t *testing.T, reply string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if reply != "" {
				_, _ = conn.Read(make([]byte, 64))
				_, _ = io.WriteString(conn, reply)
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	refusing := serveLine(t, "")
	if testserver.RedisAnswers(refusing) || testserver.MemcachedAnswers(refusing) {
		t.Error("a port that accepts connections and closes them answers")
	}
	for reply, want := range map[string]bool{
		"+PONG\r\n":                            true,
		"-NOAUTH Authentication required.\r\n": true,
		"-LOADING Redis is loading the dataset in memory\r\n": false,
		"+PO":                          false,
		"HTTP/1.1 400 Bad Request\r\n": false,
	} {
		if got := testserver.RedisAnswers(serveLine(t, reply)); got != want {
			t.Errorf("Redis with the reply %q answers: %t, want %t", reply, got, want)
		}
	}
	for reply, want := range map[string]bool{"VERSION 1.6.18\r\n": true, "ERROR\r\n": false} {
		if got := testserver.MemcachedAnswers(serveLine(t, reply)); got != want {
			t.Errorf("Memcached with the reply %q answers: %t, want %t", reply, got, want)
		}
	}
	redis, memcached := testserver.Redis(t, "--requirepass", "secret"), testserver.Memcached(t)
	if !testserver.RedisAnswers(redis.Addr) || !testserver.MemcachedAnswers(memcached.Addr) {
		t.Error("a server that runs doesn't answer")
	}
	redis.Kill()
	if testserver.RedisAnswers(redis.Addr) {
		t.Error("a server that was killed answers")
	}
}
