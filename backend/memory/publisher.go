package memory

import (
	"context"

	"github.com/sluice-go/sluice/backend"
)

// Published implements [backend.Publisher].
func (m *Memory) Published(ctx context.Context) (backend.Announcement, error) {
	switch {
	case m.closed.Load():
		return backend.Announcement{}, backend.ErrClosed
	case ctx == nil:
		return backend.Announcement{}, backend.ErrNilContext
	case ctx.Err() != nil:
		return backend.Announcement{}, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.published, nil
}

// Publish implements [backend.Publisher], for the routers of one process.
func (m *Memory) Publish(ctx context.Context, n backend.Announcement) (backend.Announcement, error) {
	if m.closed.Load() {
		return backend.Announcement{}, backend.ErrClosed
	}
	if ctx == nil {
		return backend.Announcement{}, backend.ErrNilContext
	}
	if err := n.Validate(); err != nil {
		return backend.Announcement{}, err
	}
	if err := ctx.Err(); err != nil {
		return backend.Announcement{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.published.Version < n.Version {
		m.published = n
	}
	current := m.published
	if current.Version <= n.Version {
		current.Text = ""
	}
	return current, nil
}
