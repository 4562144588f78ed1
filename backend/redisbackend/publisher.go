package redisbackend

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// noticeName follows the prefix in the name of the key that holds the notice. No key of a policy has this name: theirs
// have a colon.
const noticeName = "topology"

// Published implements [backend.Publisher].
func (r *Redis) Published(ctx context.Context) (backend.Announcement, error) {
	if ctx == nil {
		return backend.Announcement{}, backend.ErrNilContext
	}
	deadline := r.guard.Deadline()
	stored, err := callguard.Do(ctx, r.guard, "published", deadline, func(ctx context.Context) (string, error) {
		stored, _, err := r.source.Get(ctx, deadline, r.cfg.Prefix+noticeName)
		if errors.Is(err, redis.Nil) {
			return "", nil
		}
		return stored, err
	})
	if err != nil || stored == "" {
		return backend.Announcement{}, err
	}
	there, err := parseNotice(stored)
	if err != nil {
		return backend.Announcement{}, &backend.Error{Op: "published", Node: r.node, Kind: backend.Corrupt, Err: err}
	}
	return there, nil
}

// Publish implements [backend.Publisher].
func (r *Redis) Publish(ctx context.Context, n backend.Announcement) (backend.Announcement, error) {
	if ctx == nil {
		return backend.Announcement{}, backend.ErrNilContext
	}
	if err := n.Validate(); err != nil {
		return backend.Announcement{}, err
	}
	call := redispipe.Call{Script: &scripts.Post, Args: scripts.PostArgs(n.Version, n.Digest, n.Text)}
	call.Key = r.cfg.Prefix + noticeName
	reply, err := r.eval(ctx, "publish", r.guard.Deadline(), &call, nil)
	stored := reply.Text
	if err != nil || stored == "" {
		return backend.Announcement{}, err
	}
	there, err := parseNotice(stored)
	if err != nil {
		return backend.Announcement{}, &backend.Error{Op: "publish", Node: r.node, Kind: backend.Corrupt, Err: err}
	}
	return there, nil
}

// parseNotice reads what is stored or post.lua answers: a notice, or its first line.
func parseNotice(reply string) (backend.Announcement, error) {
	version, digest, text := scripts.ParsePost(reply)
	n := backend.Announcement{Version: version, Digest: digest, Text: text}
	if n.Validate() != nil {
		return backend.Announcement{}, state.ErrCorruptState
	}
	return n, nil
}
