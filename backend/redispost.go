package backend

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// noticeName follows the prefix in the name of the key that holds the notice. No key of a policy has this name: theirs
// have a colon.
const noticeName = "topology"

// Look implements [Poster].
func (r *Redis) Published(ctx context.Context) (Announcement, error) {
	if ctx == nil {
		return Announcement{}, ErrNilContext
	}
	deadline := r.guard.Deadline()
	stored, err := callguard.Do(ctx, r.guard, "look", deadline, func(ctx context.Context) (string, error) {
		stored, _, err := r.source.Get(ctx, deadline, r.cfg.Prefix+noticeName)
		if errors.Is(err, redis.Nil) {
			return "", nil
		}
		return stored, err
	})
	if err != nil || stored == "" {
		return Announcement{}, err
	}
	there, err := parseNotice(stored)
	if err != nil {
		return Announcement{}, &Error{Op: "look", Node: r.node, Kind: Corrupt, Err: err}
	}
	return there, nil
}

// Post implements [Poster].
func (r *Redis) Publish(ctx context.Context, n Announcement) (Announcement, error) {
	if ctx == nil {
		return Announcement{}, ErrNilContext
	}
	if err := n.Validate(); err != nil {
		return Announcement{}, err
	}
	call := redispipe.Call{Script: &scripts.Post, Args: scripts.PostArgs(n.Version, n.Digest, n.Text)}
	call.Key = r.cfg.Prefix + noticeName
	reply, err := r.eval(ctx, "post", r.guard.Deadline(), &call, nil)
	stored := reply.Text
	if err != nil || stored == "" {
		return Announcement{}, err
	}
	there, err := parseNotice(stored)
	if err != nil {
		return Announcement{}, &Error{Op: "post", Node: r.node, Kind: Corrupt, Err: err}
	}
	return there, nil
}

// parseNotice reads what is stored or post.lua answers: a notice, or its first line.
func parseNotice(reply string) (Announcement, error) {
	version, digest, text := scripts.ParsePost(reply)
	n := Announcement{Version: version, Digest: digest, Text: text}
	if n.Validate() != nil {
		return Announcement{}, state.ErrCorruptState
	}
	return n, nil
}
