package main

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What is attacked for long holds no more in the end than in the beginning.
func TestSoak(t *testing.T) {
	s, c := newServer(t), fullConfig()
	var out strings.Builder
	if err := soak(t.Context(), &c, s, attackPeers[0], 2*time.Second, &out); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if strings.Count(out.String(), "  yes\n") != 3 {
		t.Errorf("a part is missing:\n%s", &out)
	}
}

// leak is a limiter that keeps something more every few milliseconds, until it is closed.
type leak struct {
	mu    sync.Mutex // guards all below
	last  time.Time
	bytes [][]byte

	keep    func(*leak) error
	client  *redis.Client
	closed  chan struct{}
	running sync.WaitGroup
}

func (l *leak) Take(context.Context, string) (bool, error) {
	time.Sleep(time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < 5*time.Millisecond {
		return false, nil
	}
	l.last = time.Now()
	return true, l.keep(l)
}

func (l *leak) Close() error {
	close(l.closed)
	l.running.Wait()
	return l.client.Close()
}

// A leak is found, and named.
func TestSoakFindsLeaks(t *testing.T) {
	s, c := newServer(t), fullConfig()
	for _, tt := range []struct {
		name string
		keep func(*leak) error
	}{
		{"goroutines", func(l *leak) error {
			l.running.Go(func() { <-l.closed })
			return nil
		}},
		{"bytes of heap in use", func(l *leak) error {
			l.bytes = append(l.bytes, make([]byte, 512<<10))
			return nil
		}},
		{"connections to Redis", func(l *leak) error { return l.client.Conn().Ping(context.Background()).Err() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leaky := maker{name: "leaky", open: func(setup Setup) (Peer, error) {
				opts := setup.clientOptions()
				opts.PoolSize = 1000
				return &leak{keep: tt.keep, closed: make(chan struct{}), client: redis.NewClient(opts)}, nil
			}}
			var err error
			for d := time.Second; err == nil && d < 20*time.Second; d *= 2 { // on a busy machine little leaks in a second
				err = soak(t.Context(), &c, s, leaky, d, io.Discard)
			}
			if err == nil || !strings.Contains(err.Error(), tt.name) {
				t.Errorf("%s leak: %v", tt.name, err)
			}
		})
	}
}

// A peer that admits everything fails, even if it holds nothing.
func TestSoakCountsAllowed(t *testing.T) {
	s, c := newServer(t), fullConfig()
	open := maker{name: "open", open: func(Setup) (Peer, error) { return anyone{}, nil }}
	if err := soak(t.Context(), &c, s, open, 100*time.Millisecond, io.Discard); err == nil ||
		!strings.Contains(err.Error(), " were allowed in ") {
		t.Error(err)
	}
}

type anyone struct{}

func (anyone) Take(context.Context, string) (bool, error) { return true, nil }
func (anyone) Close() error                               { return nil }

// The thirds are compared by their medians: one sample that stands out is no growth.
func TestJudge(t *testing.T) {
	flat := held{goroutines: 20, bytes: 5 << 20, conns: 20}
	for _, tt := range []struct {
		name   string
		change func([]held)
		want   string
	}{
		{"flat", func([]held) {}, ""},
		{"a peak", func(s []held) { s[8].bytes *= 9 }, ""},
		{"as much as may be", func(s []held) {
			for i := 6; i < 9; i++ {
				s[i] = held{flat.goroutines + moreGoroutines, flat.bytes + moreBytes, flat.conns + moreConns}
			}
		}, ""},
		{"one goroutine more", func(s []held) {
			for i := 6; i < 9; i++ {
				s[i].goroutines += moreGoroutines + 1
			}
		}, "goroutines grew from 20 to 31, by more than 10"},
		{"less and less", func(s []held) { s[0].bytes, s[1].bytes, s[2].bytes = 1<<30, 1<<30, 1<<30 }, ""},
	} {
		samples := make([]held, 9)
		for i := range samples {
			samples[i] = flat
		}
		tt.change(samples)
		got := ""
		if err := judge(samples, io.Discard); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
