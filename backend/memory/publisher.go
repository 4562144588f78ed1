package memory

import (
	"context"
	"sync"

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
	m.board.mu.Lock()
	defer m.board.mu.Unlock()
	return m.board.notice, nil
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
	return m.board.post(n), nil
}

// board is where a notice is left.
type board struct {
	mu     sync.Mutex // guards notice
	notice backend.Announcement
}

func (b *board) post(n backend.Announcement) backend.Announcement {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.notice.Version < n.Version && n.Text != "" {
		b.notice = n
	}
	there := b.notice
	if there.Version <= n.Version {
		there.Text = ""
	}
	return there
}
