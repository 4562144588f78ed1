package simulate

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/picture"
)

// picture draws what was offered and admitted over time, a plot for each policy.
func (s *simulation) picture(description string) []byte {
	t := &s.timeline
	p := picture.Timeline{
		Title: "What each policy admits", Note: fmt.Sprintf("%s; slices of %v", description, t.width()),
		Unit: "requests a second", Caption: "time since the first request",
		Duration: time.Duration(len(t.offered)) * t.width(), Step: t.width(),
	}
	if s.cost != s.requests {
		p.Unit = "cost a second"
	}
	for i, c := range s.candidates {
		plot := picture.Plot{
			Name: c.name, Summary: fmt.Sprintf("%d admitted, %d denied", c.admitted, c.denied),
			Offered: t.offered, Admitted: t.admitted[i],
		}
		for _, peak := range c.peaks {
			length := time.Duration(peak.length) * time.Microsecond
			plot.Summary += fmt.Sprintf("; most in any %s: %d", picture.ShortDuration(length), peak.most)
		}
		p.Plots = append(p.Plots, plot)
	}
	return p.SVG()
}
