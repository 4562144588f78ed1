package backend

import (
	"context"
	"sync"
)

// Look implements [Poster].
func (m *Memory) Look(ctx context.Context) (Notice, error) {
	switch {
	case m.closed.Load():
		return Notice{}, ErrClosed
	case ctx == nil:
		return Notice{}, ErrNilContext
	case ctx.Err() != nil:
		return Notice{}, ctx.Err()
	}
	m.board.mu.Lock()
	defer m.board.mu.Unlock()
	return m.board.notice, nil
}

// Post implements [Poster], for the routers of one process.
func (m *Memory) Post(ctx context.Context, n Notice) (Notice, error) {
	if m.closed.Load() {
		return Notice{}, ErrClosed
	}
	if ctx == nil {
		return Notice{}, ErrNilContext
	}
	if err := n.Validate(); err != nil {
		return Notice{}, err
	}
	if err := ctx.Err(); err != nil {
		return Notice{}, err
	}
	return m.board.post(n), nil
}

// board is where a notice is left.
type board struct {
	mu     sync.Mutex // guards notice
	notice Notice
}

func (b *board) post(n Notice) Notice {
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
