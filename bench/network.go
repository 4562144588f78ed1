package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// NetworkRow is what the peers did with one row.
type NetworkRow struct {
	Row       Row             `json:"row"`
	Name      string          `json:"name"`
	Reference string          `json:"reference"`
	Peers     []NetworkResult `json:"peers"`
}

// NetworkResult is what one peer did.
type NetworkResult struct {
	Peer        string  `json:"peer"`
	Median      Slice   `json:"median"`
	BytesPerKey int64   `json:"bytes_per_key"`
	Rounds      []Slice `json:"rounds"`
	Failure     string  `json:"failure,omitempty"` // the first error
}

// find is the peer's result, nil if it has none.
func (r *NetworkRow) find(peer string) *NetworkResult {
	for i := range r.Peers {
		if r.Peers[i].Peer == peer {
			return &r.Peers[i]
		}
	}
	return nil
}

// perSecond are the decisions a second of every round.
func (r *NetworkResult) perSecond() []float64 {
	values := make([]float64, len(r.Rounds))
	for i := range values {
		values[i] = r.Rounds[i].PerSecond
	}
	return values
}

// runRow lets all peers that can do a row take turns, in another order each round.
func runRow(ctx context.Context, c *config, s *server, all callers, row Row) (NetworkRow, error) {
	result := NetworkRow{Row: row, Name: row.Name(), Reference: row.Reference()}
	makers := slices.Clone(only(row.peers(), c.peers))
	if row.Limits > 1 {
		makers = slices.DeleteFunc(makers, func(m maker) bool { return !m.many })
	}
	keys := makeKeys(row.keyCount(c))
	t := turn{config: c, server: s, all: all, row: row, keys: keys, order: makeOrder(len(keys), row.Zipf, c.seed)}
	for i, m := range makers {
		if row.Apart {
			m.open = clientsOf(row.Callers, m.open)
			makers[i] = m
		}
		bytes, err := t.bytesPerKey(ctx, m)
		if err != nil {
			return result, fmt.Errorf("%s: %s: %w", row.Name(), m.name, err)
		}
		result.Peers = append(result.Peers, NetworkResult{Peer: m.name, BytesPerKey: bytes})
	}
	random := rand.New(rand.NewPCG(c.seed, 1))
	rounds := row.rounds(c)
	for round := range rounds {
		fmt.Fprintf(c.verbose, "%s: round %d of %d\n", row.Name(), round+1, rounds)
		for _, i := range random.Perm(len(makers)) {
			slice, failure, err := t.run(ctx, makers[i])
			if err != nil {
				return result, fmt.Errorf("%s: %s: %w", row.Name(), makers[i].name, err)
			}
			r := &result.Peers[i]
			r.Rounds = append(r.Rounds, slice)
			if failure != nil && r.Failure == "" {
				r.Failure = failure.Error()
			}
		}
	}
	for i := range result.Peers {
		result.Peers[i].Median = medians(result.Peers[i].Rounds)
	}
	return result, nil
}

// A turn is what all peers have in common in one row.
type turn struct {
	*config
	server *server
	all    callers
	row    Row
	keys   []string
	order  []uint32
}

func (t *turn) setup() Setup {
	return Setup{Addr: t.server.Addr, Quotas: t.row.Quotas(), Conns: t.conns}
}

// run empties the server, opens the peer, lets it meet every key once, and measures.
func (t *turn) run(ctx context.Context, m maker) (slice Slice, failure, err error) {
	if err := t.server.flush(ctx); err != nil {
		return Slice{}, nil, err
	}
	p, err := m.open(t.setup())
	if err != nil {
		return Slice{}, nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := t.prepare(ctx, p, t.keys); err != nil {
		return Slice{}, nil, err
	}
	return t.server.measure(ctx, t.all[:t.row.Callers], p, t.keys, t.order, t.length(), t.loose)
}

// length of the turn.
func (t *turn) length() time.Duration {
	if t.row.Attack {
		return t.attack
	}
	return t.slice
}

// prepare takes every key once, and in every minute of the hour before if the row has a history. As many callers do it
// as the server can be kept busy with; those of the row's own connect on the way.
func (t *turn) prepare(ctx context.Context, p Peer, keys []string) error {
	now := time.Now()
	if t.row.History {
		h, ok := p.(historian)
		if !ok {
			return errors.New("can't be given a past")
		}
		for minute := 59; minute > 0; minute-- {
			past, err := h.At(now.Add(time.Duration(-minute) * time.Minute))
			if err != nil {
				return err
			}
			o := t.all[:min(16, len(keys))].work(ctx, past, keys, nil, 0, false)
			if err := errors.Join(o.firstError, past.Close()); err != nil {
				return err
			}
		}
	}
	return t.all[:min(max(64, t.row.Callers), len(t.all), len(keys))].work(ctx, p, keys, nil, 0, t.loose).firstError
}

// bytesPerKey is by how much the memory of what the server stores grows with a second key, after some use in one window:
// limiters has a second key once there is a window before it, and sluice one key for each server.
func (t *turn) bytesPerKey(ctx context.Context, m maker) (bytes int64, err error) {
	if err := t.server.flush(ctx); err != nil {
		return 0, err
	}
	p, err := m.open(t.setup())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	var before int64
	for i, key := range t.keys[:2] {
		if err := t.prepare(ctx, p, t.keys[i:i+1]); err != nil {
			return 0, err
		}
		for range 9 {
			if _, err := p.Take(ctx, key); err != nil {
				return 0, err
			}
		}
		before = bytes
		if bytes, err = t.server.bytes(ctx); err != nil {
			return 0, err
		}
	}
	return bytes - before, nil
}
