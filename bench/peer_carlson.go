package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed carlson.lua
var carlsonScript string

// carlsonPeer is the script with several limits and precisions from Josiah Carlson's "Introduction to rate limiting
// with Redis, part 2" (2014), as a reader would run it. The limits are made JSON once, not for each take.
type carlsonPeer struct {
	client *redis.Client
	script *redis.Script
	limits string
	now    func() time.Time
	close  func() error
}

func openCarlson(s Setup) (Peer, error) {
	var limits [][]int64
	for _, q := range s.Quotas {
		l := []int64{int64(q.Window / time.Second), q.Max}
		if q.Precision != 0 {
			l = append(l, int64(q.Precision/time.Second))
		}
		limits = append(limits, l)
	}
	text, err := json.Marshal(limits)
	if err != nil {
		return nil, err
	}
	client := s.client()
	return &carlsonPeer{
		client: client, script: redis.NewScript(carlsonScript), limits: string(text), now: time.Now, close: client.Close,
	}, nil
}

func (p *carlsonPeer) Take(ctx context.Context, key string) (bool, error) {
	now := strconv.FormatFloat(float64(p.now().UnixMicro())/1e6, 'f', 6, 64)
	over, err := p.script.Run(ctx, p.client, []string{"carlson:" + key}, p.limits, now, 1).Int()
	return over == 0, err
}

func (p *carlsonPeer) Close() error { return p.close() }

func (p *carlsonPeer) At(now time.Time) (Peer, error) {
	past := *p
	past.now, past.close = func() time.Time { return now }, func() error { return nil }
	return &past, nil
}
