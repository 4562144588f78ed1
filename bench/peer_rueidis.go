package main

import (
	"context"

	"github.com/redis/rueidis"
)

// rueidisPeer is the floor over a client that shares a few connections among all callers and sends together what
// comes together. Its pool is its own: more connections would only take that from it.
type rueidisPeer struct {
	client rueidis.Client
	max    int64
}

func openRueidis(s Setup) (Peer, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	return &rueidisPeer{client: client, max: s.Quotas[0].Max}, nil
}

func (p *rueidisPeer) Take(ctx context.Context, key string) (bool, error) {
	n, err := p.client.Do(ctx, p.client.B().Incr().Key("incr:"+key).Build()).AsInt64()
	return n <= p.max, err
}

func (p *rueidisPeer) Close() error {
	p.client.Close()
	return nil
}
