package redisbackend

import (
	"cmp"
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// announcementName follows the prefix in the name of the key that holds the announcement. No key of a policy has this name: theirs
// have a colon.
const announcementName = "topology"

// Published implements [control.Publisher].
func (r *Redis) Published(ctx context.Context) (control.Announcement, error) {
	if ctx == nil {
		return control.Announcement{}, fielderrors.ErrNilContext
	}
	deadline := r.guard.Deadline()
	stored, err := callguard.Do(ctx, r.guard, "published", deadline, func(ctx context.Context) (string, error) {
		stored, _, err := r.source.Get(ctx, deadline, r.cfg.Prefix+announcementName)
		if errors.Is(err, redis.Nil) {
			return "", nil
		}
		return stored, err
	})
	if err != nil || stored == "" {
		return control.Announcement{}, err
	}
	there, err := parseAnnouncement(stored)
	if err != nil {
		return control.Announcement{}, &backend.Error{Op: "published", Node: r.node, Kind: backend.Corrupt, Err: err}
	}
	return there, nil
}

// Publish implements [control.Publisher].
func (r *Redis) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	if ctx == nil {
		return control.Announcement{}, fielderrors.ErrNilContext
	}
	if err := n.Validate(); err != nil {
		return control.Announcement{}, err
	}
	call := redispipe.Call{Script: &scripts.Publish, Args: scripts.PublishArgs(n.Version, n.Digest, n.Text)}
	call.Key = r.cfg.Prefix + announcementName
	reply, err := r.eval(ctx, "publish", r.guard.Deadline(), &call, nil)
	if err != nil {
		return control.Announcement{}, err
	}
	there, err := parseAnnouncement(reply.Text)
	if err != nil {
		return control.Announcement{}, &backend.Error{Op: "publish", Node: r.node, Kind: backend.Corrupt, Err: err}
	}
	return there, nil
}

// parseAnnouncement reads what is stored or publish.lua answers: an announcement, or its first line.
func parseAnnouncement(reply string) (control.Announcement, error) {
	version, digest, text := scripts.ParsePublish(reply)
	n := control.Announcement{Version: version, Digest: digest, Text: text}
	whole := n
	whole.Text = cmp.Or(text, "left out")
	if whole.Validate() != nil {
		return control.Announcement{}, state.ErrCorruptState
	}
	return n, nil
}
