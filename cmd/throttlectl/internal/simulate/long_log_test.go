package simulate

import (
	"io"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/traffic"
	"github.com/sluice-go/sluice/limit"
)

// log is a CSV file of as many lines as one likes, which is nowhere as a whole: each second another key asks 10 times.
type log struct {
	lines, n int
	rest     []byte
}

func (l *log) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		if l.n == l.lines {
			return 0, io.EOF
		}
		at := time.Unix(1_700_000_000+int64(l.n/10), 0).UTC().Format(time.RFC3339)
		l.rest = []byte(at + ",user:" + at + "\n")
		l.n++
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// What is remembered of a long log is what counts at a time, whatever the number of its keys.
func TestLongLog(t *testing.T) {
	t.Parallel()
	const lines = 400_000
	s := newSimulation([]limit.Policy{{Limits: []limit.Limit{limit.Sliding(5, time.Minute, time.Second)}}})
	most := 0
	watched := func(yield func(traffic.Request, error) bool) {
		for a, err := range traffic.ReadCSV(&log{lines: lines}) {
			most = max(most, s.held)
			if !yield(a, err) {
				return
			}
		}
	}
	if err := s.play(t.Context(), watched, 0); err != nil {
		t.Fatal(err)
	}
	c := s.candidates[0]
	if s.requests != lines || c.admitted != lines/2 || c.longest.count != 5 {
		t.Errorf("%d requests, %d admitted, %d denied in a row", s.requests, c.admitted, c.longest.count)
	}
	if most > 2*firstSweep*(heldByKey+1) || len(s.timeline.offered) > maxSlices {
		t.Errorf("%d charges and keys of %d remembered, %d slices", most, lines/10, len(s.timeline.offered))
	}
}
