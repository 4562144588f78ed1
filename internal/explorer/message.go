package explorer

import (
	"context"
	"strconv"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

// message is what a process sends to a place.
type message struct {
	kind    byte // take, refund, seal or seed, by its first letter; 'd' for seed
	place   int
	req     backend.Request
	receipt state.Receipt
	amount  int64
	floor   state.State
}

type answer struct {
	result   backend.Result
	snapshot backend.Snapshot
	err      error
}

// unanswered is what the sender of a message learns that is lost, or late.
func (m *message) unanswered() error {
	return &backend.Error{Op: "call", Kind: backend.Unavailable, MayHaveCharged: m.kind != 's', Err: context.DeadlineExceeded}
}

// clone is a message that shares nothing with its sender.
func (m *message) clone() message {
	c := *m
	c.floor = m.floor.Clone()
	if m.req.Floor != nil {
		floor := m.req.Floor.Clone()
		c.req.Floor = &floor
	}
	return c
}

func (m *message) String() string {
	return string(m.append(nil))
}

var messageNames = map[byte]string{'t': "take", 'd': "seed", 'r': "refund", 's': "seal"}

func (m *message) append(b []byte) []byte {
	b = append(b, messageNames[m.kind]...)
	b = append(b, " at "...)
	b = append(b, byte('A'+m.place))
	if v := m.req.Move.Version; v > 0 {
		b = append(b, " under "...)
		b = strconv.AppendInt(b, v, 10)
		b = append(b, [...]string{" ask", " adopt", " alone"}[m.req.Move.Step]...)
	}
	if m.req.Floor != nil {
		b, _ = m.req.Floor.AppendText(append(b, " floor "...))
	}
	if m.kind == 'd' {
		b, _ = m.floor.AppendText(append(b, " floor "...))
	}
	if m.kind == 'r' {
		_, position, _ := m.receipt.Charge(0)
		b = strconv.AppendInt(append(b, " charge "...), position, 10)
	}
	return b
}
