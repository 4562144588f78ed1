package main

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed github.lua
var githubScript string

// githubPeer is the script that counts, from GitHub's "How we scaled the GitHub API with a sharded, replicated rate
// limiter in Redis" (2021), as a reader would run it. Denied requests count, too. GitHub first asks a replica, with a
// second script; that is left out, so this is the cheaper half.
type githubPeer struct {
	client *redis.Client
	script *redis.Script
	quota  Quota
}

func openGitHub(s Setup) (Peer, error) {
	return &githubPeer{client: s.client(), script: redis.NewScript(githubScript), quota: s.Quotas[0]}, nil
}

func (p *githubPeer) Take(ctx context.Context, key string) (bool, error) {
	now := time.Now()
	reply, err := p.script.Run(ctx, p.client, []string{"github:" + key},
		1, now.Add(p.quota.Window).Unix(), now.Unix()).Int64Slice()
	if err != nil {
		return false, err
	}
	return reply[0] <= p.quota.Max, nil
}

func (p *githubPeer) Close() error { return p.client.Close() }
