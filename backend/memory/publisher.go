package memory

import (
	"context"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/internal/fielderrors"
)

// Published implements [control.Publisher].
func (m *Memory) Published(ctx context.Context) (control.Announcement, error) {
	switch {
	case m.closed.Load():
		return control.Announcement{}, backend.ErrClosed
	case ctx == nil:
		return control.Announcement{}, fielderrors.ErrNilContext
	case ctx.Err() != nil:
		return control.Announcement{}, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.published, nil
}

// Publish implements [control.Publisher], for the routers of one process.
func (m *Memory) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	if m.closed.Load() {
		return control.Announcement{}, backend.ErrClosed
	}
	if ctx == nil {
		return control.Announcement{}, fielderrors.ErrNilContext
	}
	if err := n.Validate(); err != nil {
		return control.Announcement{}, err
	}
	if err := ctx.Err(); err != nil {
		return control.Announcement{}, err
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
